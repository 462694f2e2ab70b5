//! The files of the repository, for tests of what they say.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Where the repository lies.
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("the package is a folder of the repository").to_path_buf()
}

/// What a file says; `name` is its path from the root.
pub fn read(name: &str) -> String {
    let path = root().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `a/b/../c` is `a/c`; nothing when it leads out of the repository.
pub fn normal(path: &Path) -> Option<PathBuf> {
    path.components().try_fold(PathBuf::new(), |mut path, component| {
        match component {
            Component::Normal(name) => path.push(name),
            Component::CurDir => (),
            Component::ParentDir if path.pop() => (),
            _ => return None,
        }
        Some(path)
    })
}

/// The paths from the root of the files with this extension, in this folder (`""`: the root) and those below,
/// sorted. What git does not keep, such as target/, is left out.
pub fn files(folder: &str, extension: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let entry = entry.expect("an entry");
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if entry.file_type().expect("its type").is_dir() {
                if !NOT_OURS.contains(&&*name) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|its| its == extension) {
                let path = path.strip_prefix(root()).expect("below the root");
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

/// Folders that are no part of the repository, wherever they are.
const NOT_OURS: [&str; 3] = [".git", "target", "node_modules"];
