"""The import path of task folders made before version 0.2. Nothing new belongs here."""
