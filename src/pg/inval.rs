pub fn catalog_changed() -> bool {
    false
}
