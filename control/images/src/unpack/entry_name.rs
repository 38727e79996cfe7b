//! Names of a layer's entries: their paths, and the meaning of those with `.wh.`.

/// The meaning of an entry's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EntryName {
    /// The layer's own root folder.
    Root,
    /// `name` in the folder that `folder` leads to.
    Child { folder: Vec<Vec<u8>>, name: Vec<u8> },
    /// `.wh.NAME`: the lower layers' `name` is hidden.
    Whiteout { folder: Vec<Vec<u8>>, name: Vec<u8> },
    /// `.wh..wh..opq`: all that the lower layers have in `folder` is hidden.
    Opaque { folder: Vec<Vec<u8>> },
    /// Notes of AUFS to itself (`.wh..wh.plnk`); they mean nothing to others.
    AufsMetadata,
}

const WHITEOUT_PREFIX: &[u8] = b".wh.";
const AUFS_PREFIX: &[u8] = b".wh..wh.";
const OPAQUE_NAME: &[u8] = b".wh..wh..opq";
/// Folders in folders. Real trees have some fifty; without a bound, removing them would be costly.
pub(super) const DEPTH_MAX: usize = 512;

/// The components of a path in a layer, which is relative to the layer's root even if it begins with `/`.
pub(super) fn components(path: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let shown = || String::from_utf8_lossy(&path[..path.len().min(200)]).into_owned();
    let mut components = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(format!("{:?} leads out of its folder", shown())),
            part if part.contains(&0) => return Err(format!("{:?} has a zero byte in its name", shown())),
            part => components.push(part.to_vec()),
        }
    }
    if components.len() > DEPTH_MAX {
        return Err(format!("{:?} is {} folders deep, limit {DEPTH_MAX}", shown(), components.len()));
    }
    Ok(components)
}

pub(super) fn parse(path: &[u8]) -> Result<EntryName, String> {
    let mut folder = components(path)?;
    let Some(name) = folder.pop() else { return Ok(EntryName::Root) };
    if folder.iter().any(|part| part.starts_with(AUFS_PREFIX)) {
        return Ok(EntryName::AufsMetadata);
    }
    if folder.iter().any(|part| part.starts_with(WHITEOUT_PREFIX)) {
        return Err(format!("{:?} is below a whiteout", String::from_utf8_lossy(path)));
    }
    if name == OPAQUE_NAME {
        return Ok(EntryName::Opaque { folder });
    }
    if name.starts_with(AUFS_PREFIX) {
        return Ok(EntryName::AufsMetadata);
    }
    match name.strip_prefix(WHITEOUT_PREFIX) {
        Some(b"" | b"." | b"..") => Err(format!("{:?} hides no name of its folder", String::from_utf8_lossy(path))),
        Some(hidden) => Ok(EntryName::Whiteout { folder, name: hidden.to_vec() }),
        None => Ok(EntryName::Child { folder, name }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(names: &[&str]) -> Vec<Vec<u8>> {
        names.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    #[test]
    fn names_are_relative_to_the_layer() {
        let child = |folder: &[&str], name: &str| EntryName::Child { folder: parts(folder), name: name.into() };
        for (path, expected) in [
            ("./", EntryName::Root),
            ("/", EntryName::Root),
            ("/etc//./passwd", child(&["etc"], "passwd")),
            ("etc/", child(&[], "etc")),
            ("...", child(&[], "...")),
            ("a/.wh.b", EntryName::Whiteout { folder: parts(&["a"]), name: b"b".to_vec() }),
            (".wh..b", EntryName::Whiteout { folder: vec![], name: b".b".to_vec() }),
            ("a/.wh..wh..opq", EntryName::Opaque { folder: parts(&["a"]) }),
            (".wh..wh.plnk/x.y", EntryName::AufsMetadata),
            (".wh..wh.aufs", EntryName::AufsMetadata),
        ] {
            assert_eq!(parse(path.as_bytes()), Ok(expected), "{path}");
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let deep = "a/".repeat(600);
        for path in
            ["..", "../x", "a/../../b", "/..", "a/.wh.", "a/.wh..", "a/.wh...", ".wh.a/b", "a\0b", deep.as_str()]
        {
            assert!(parse(path.as_bytes()).is_err(), "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn any_name_stays_in_its_folder(path in prop::collection::vec(prop::sample::select(b"./awh\0".to_vec()), 0..24)) {
            if let Ok(EntryName::Child { folder, name } | EntryName::Whiteout { folder, name }) = parse(&path) {
                for part in folder.iter().chain([&name]) {
                    prop_assert!(!part.contains(&b'/') && part != b".." && part != b"." && !part.is_empty());
                }
            }
        }
    }
}
