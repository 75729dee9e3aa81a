"""The base of the models of the rack's description."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """Fields that nothing changes, and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True)
