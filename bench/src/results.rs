//! What was measured, in a folder: a file for each contest, one for the machine.

use std::fs;
use std::path::{Path, PathBuf};

use pg_expiry_tests::serde_json;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::contest::Part;
use crate::machine::Machine;

pub struct Results(PathBuf);

impl Results {
    pub fn in_folder(folder: PathBuf) -> Results {
        fs::create_dir_all(&folder).expect("the folder of the results");
        Results(folder)
    }

    pub fn remove_all(&self) {
        for entry in fs::read_dir(&self.0).expect("the folder of the results").flatten() {
            if entry.path().extension().is_some_and(|ending| ending == "json") {
                fs::remove_file(entry.path()).expect("a file of results");
            }
        }
    }

    pub fn keep(&self, name: &str, parts: &[Part]) {
        write(&self.path(name), parts);
    }

    pub fn keep_machine(&self, machine: &Machine) {
        write(&self.path("machine"), machine);
    }

    /// Nothing when that was not measured.
    pub fn parts(&self, name: &str) -> Vec<Part> {
        if self.path(name).exists() { read(&self.path(name)) } else { Vec::new() }
    }

    pub fn machine(&self) -> Machine {
        read(&self.path("machine"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name).with_extension("json")
    }
}

fn write<T: Serialize + ?Sized>(path: &Path, what: &T) {
    let text = serde_json::to_string(what).expect("JSON");
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn read<T: DeserializeOwned>(path: &Path) -> T {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
