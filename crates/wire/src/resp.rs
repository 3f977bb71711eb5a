//! RESP2 and RESP3: requests in, replies out.
