"""The base class of the models of the rack's description."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """Immutable fields; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
