//! Checks `docs/security.md`: each row names tests that fail without the defence, and these tests
//! exist.

use std::collections::BTreeSet;
use std::path::Path;

/// Names of all test functions and classes below a folder, Rust and Python.
fn collect(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if entry.is_dir() && !name.starts_with('.') && !["target", "build"].contains(&&*name) {
            collect(&entry, names);
        }
        let Some(extension) = entry.extension().filter(|e| *e == "rs" || *e == "py") else { continue };
        let text = std::fs::read_to_string(&entry).unwrap();
        let mut is_test = extension == "py";
        for line in text.lines().map(str::trim_start) {
            let words = ["fn ", "async fn ", "def ", "async def ", "class "];
            if let Some(rest) = words.iter().find_map(|w| line.strip_prefix(w)).filter(|_| is_test) {
                names.insert(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
                is_test = extension == "py";
            }
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        }
    }
}

#[test]
fn every_attack_names_existing_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut names = BTreeSet::new();
    for folder in ["host", "switch", "ptf-tests", "controller/tests", "p4src/tests"] {
        collect(&root.join(folder), &mut names);
    }
    let page = std::fs::read_to_string(root.join("docs/security.md")).unwrap();
    let (_, table) =
        page.split_once("| attack | what stops it | what is left |").expect("the table of attacks");
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 15, "{} rows", rows.len());
    for row in rows {
        if row.contains("(no test: ") {
            continue;
        }
        // A row has a group for each of its defences: (test: `name`), (tests: `name`, `name`).
        let groups = row.split("(test").skip(1).filter_map(|rest| rest.split_once(')')?.0.split_once(':'));
        let tests: Vec<&str> = groups.flat_map(|(_, names)| names.split('`').skip(1).step_by(2)).collect();
        assert!(!tests.is_empty(), "{row}");
        for test in tests {
            assert!(names.contains(test), "there is no test {test}");
        }
    }
}
