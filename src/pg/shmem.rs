pub fn request_index_build(_policy: &str) {}
