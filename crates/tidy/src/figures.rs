//! Figures of documents: `scripts/figures` compares them with the results that they come from.

use std::path::Path;
use std::process::Command;

/// Runs the script with Python, if the repository has it.
///
/// # Errors
/// The script's output if it fails, or why it cannot be run.
pub fn check(root: &Path) -> Result<(), String> {
    let script = root.join("scripts/figures");
    if !script.exists() {
        return Ok(());
    }
    let ran = Command::new("python3")
        .arg(&script)
        .current_dir(root)
        .output();
    let ran = ran.map_err(|error| format!("python3 {}: {error}", script.display()))?;
    if ran.status.success() {
        return Ok(());
    }
    let said = [ran.stdout, ran.stderr].concat();
    Err(String::from_utf8_lossy(&said).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_script(name: &str, script: &str) -> Result<(), String> {
        let root = std::env::temp_dir().join(format!("tidy-{name}-{}", std::process::id()));
        std::fs::create_dir_all(root.join("scripts")).unwrap();
        std::fs::write(root.join("scripts/figures"), script).unwrap();
        let result = check(&root);
        std::fs::remove_dir_all(&root).unwrap();
        result
    }

    #[test]
    fn a_failing_script_is_quoted() {
        let refused = with_script("bad", "print('1.5 is 1.6')\nraise SystemExit(1)");
        assert_eq!(refused, Err("1.5 is 1.6\n".to_owned()));
        assert_eq!(with_script("good", "print('fine')"), Ok(()));
    }

    #[test]
    fn a_repository_without_the_script_passes() {
        assert_eq!(check(Path::new("/nonexistent")), Ok(()));
    }
}
