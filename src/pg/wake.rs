pub fn generation() -> u64 {
    0
}
pub fn at_commit() {}
