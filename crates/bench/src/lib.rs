//! Load generators and the demo origin server.

#![forbid(unsafe_code)]

pub mod load;
pub mod origin;
mod pem;
