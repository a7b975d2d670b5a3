//! Visible lists of devices: the same devices after they were printed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rlaunch::plan::devices::visible_devices::{VisibleList, joined, of_cuda, of_others};

fuzz_target!(|text: &str| {
    for parse in [of_cuda, of_others] {
        match parse("FIELD", text) {
            Ok(VisibleList::All) => assert_eq!(text.trim(), "all"),
            Ok(VisibleList::These(devices)) => {
                let printed = joined(&devices);
                assert!(printed.len() <= text.len().max(10 * devices.len()));
                assert_eq!(parse("FIELD", &printed).ok(), Some(VisibleList::These(devices)));
            }
            Err(error) => assert!(error.to_string().len() <= 4096 + 8 * text.len()),
        }
    }
});
