//! The generated pages of the docs are those of the tables: every option, variable and exit status is in them.

use rlaunch::cli::reference::pages;
use rlaunch::framework::document;

#[test]
fn the_generated_pages_are_up_to_date() {
    let references = pages().into_iter().map(|(name, text)| (format!("docs/reference/{name}"), text));
    for (path, text) in references.chain([("docs/environment.md".into(), document())]) {
        let file = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("RLAUNCH_UPDATE_DOCS").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(written, text, "{path}: RLAUNCH_UPDATE_DOCS=1 cargo test writes it anew");
    }
}
