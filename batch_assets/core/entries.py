"""The base of what people write in YAML or in a task: pydantic, but for what it takes and nobody means."""

from pydantic import BaseModel, ValidationInfo, field_validator


class Entry(BaseModel):
    """Settings by name. A truth value is no number: `max_in_flight: yes` would else be 1."""

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("a truth value is no number and no text")
        return value
