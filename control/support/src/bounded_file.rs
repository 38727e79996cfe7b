//! Reads files of users whole if they are small enough. The reported size does not count: a device reports 0,
//! and a file may grow meanwhile.

use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Result};
use std::path::Path;

/// The content of the file; `None` if it has more than `bytes_max` bytes.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= bytes_max).then_some(bytes))
}

/// The same of a text.
///
/// # Errors
/// It cannot be read, or is no UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<Option<String>> {
    let text = |bytes| String::from_utf8(bytes).map_err(|why| Error::new(ErrorKind::InvalidData, why));
    read(path, bytes_max)?.map(text).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit_and_a_device_not_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read_text(&path, 4).unwrap().as_deref(), Some("four"));
        assert_eq!(read_text(&path, 3).unwrap(), None);
        assert_eq!(read(Path::new("/dev/zero"), 9).unwrap(), None);
        assert_eq!(read(&folder.path().join("none"), 9).unwrap_err().kind(), ErrorKind::NotFound);
        std::fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_text(&path, 4).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
