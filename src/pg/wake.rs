pub fn generation() -> u64 {
    0
}
