//! Why connections are not protected that should be.

use super::trods::Guard;

impl Guard {
    /// Why nothing is protected although services are configured for it.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Why this service is not protected although it is configured, while others are.
    pub(super) fn lacks(&self, service: u16) -> Option<&str> {
        self.lacking.get(&service).map(String::as_str)
    }
}
