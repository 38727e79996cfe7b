//! The files of an archive by their names.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tar::EntryType;

use crate::digest::Digest;
use crate::error::Error;
use crate::limits::{
    ARCHIVE_BYTES_MAX, ARCHIVE_ENTRIES_MAX, ARCHIVE_HEADER_BYTES_MAX, ARCHIVE_LINKS_MAX, BLOB_BYTES_MAX,
};

/// A folder, or a tar whose files were written to another folder.
#[derive(Debug)]
pub(super) enum Files {
    Folder(PathBuf),
    Tar { files: HashMap<String, PathBuf>, links: HashMap<String, String> },
}

impl Files {
    /// Opens the folder or tar `path`; files of a tar are written to `target`.
    pub(super) fn open(path: &Path, target: &Path) -> Result<Self, Error> {
        let failed = |why: io::Error| Error::storage(path, "an archive of images", &why);
        if path.metadata().map_err(failed)?.is_dir() {
            return Ok(Self::Folder(path.to_owned()));
        }
        let mut input = BufReader::with_capacity(256 << 10, File::open(path).map_err(failed)?);
        let start = input.fill_buf().map_err(failed)?;
        let reader: Box<dyn Read> = match start {
            [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::stream::read::Decoder::with_buffer(input).map_err(failed)?),
            _ => Box::new(input),
        };
        extract(reader, target, ARCHIVE_BYTES_MAX).map_err(|why| match why {
            // Without this, an archive on a full disk would look like one that is broken.
            Extract::Write(why) => Error::storage(target, "the files of an archive", &why),
            Extract::Read(detail) => Error::Unsupported { image: path.display().to_string(), detail },
        })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.path(name).is_some_and(|path| path.is_file())
    }

    /// Where the file `name` of the archive is. In a folder only names of an OCI layout lead anywhere.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        match self {
            Self::Folder(folder) => is_layout_name(name).then(|| folder.join(name)),
            Self::Tar { files, links } => {
                let mut name = normalize(name)?;
                for _ in 0..ARCHIVE_LINKS_MAX {
                    if let Some(path) = files.get(&name) {
                        return Some(path.clone());
                    }
                    name = links.get(&name)?.clone();
                }
                None
            }
        }
    }

    /// A small file.
    pub(super) fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>, String> {
        let path = self.path(name).ok_or_else(|| format!("{name} is missing in it"))?;
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(|why| format!("{name}: {why}"))?;
        file.take(limit + 1).read_to_end(&mut bytes).map_err(|why| format!("{name}: {why}"))?;
        if bytes.len() as u64 > limit {
            return Err(format!("{name} is larger than {limit} bytes"));
        }
        Ok(bytes)
    }

    pub(super) fn size(&self, name: &str) -> u64 {
        self.path(name).and_then(|path| path.metadata().ok()).map_or(0, |about| about.len())
    }
}

/// The name of a blob in an OCI layout.
pub(super) fn blob_name(digest: &Digest) -> String {
    format!("blobs/{}/{}", digest.algorithm(), digest.hex())
}

fn is_layout_name(name: &str) -> bool {
    let blob = name.strip_prefix("blobs/").map(|rest| rest.replacen('/', ":", 1));
    matches!(name, "index.json" | "oci-layout" | "manifest.json")
        || blob.is_some_and(|digest| digest.parse::<Digest>().is_ok())
}

enum Extract {
    Read(String),
    Write(io::Error),
}

/// Writes the files of a tar to `target`, with `bytes_max` in all of its entries.
fn extract(reader: impl Read, target: &Path, bytes_max: u64) -> Result<Files, Extract> {
    let not_tar = |why: io::Error| Extract::Read(format!("it is not a valid tar: {why}"));
    let (mut files, mut links) = (HashMap::new(), HashMap::new());
    let allowance = Rc::new(Cell::new(ARCHIVE_HEADER_BYTES_MAX));
    let mut bytes_left = bytes_max;
    let mut archive = tar::Archive::new(HeaderLimit { inner: reader, allowance: Rc::clone(&allowance) });
    for (number, entry) in archive.entries().map_err(not_tar)?.enumerate() {
        let mut entry = entry.map_err(not_tar)?;
        if number >= ARCHIVE_ENTRIES_MAX {
            return Err(Extract::Read(format!("it has more than {ARCHIVE_ENTRIES_MAX} entries")));
        }
        allowance.set(u64::MAX);
        bytes_left = bytes_left
            .checked_sub(entry.size())
            .ok_or_else(|| Extract::Read(format!("its entries have more than {bytes_max} bytes")))?;
        let name = String::from_utf8(entry.path_bytes().into_owned()).ok();
        match (name.and_then(|name| normalize(&name)), entry.header().entry_type()) {
            (Some(name), EntryType::Regular) if entry.size() > BLOB_BYTES_MAX => {
                return Err(Extract::Read(format!("{name} is larger than {BLOB_BYTES_MAX} bytes")));
            }
            (Some(name), EntryType::Regular) => {
                let path = target.join(number.to_string());
                let mut file = File::create(&path).map_err(Extract::Write)?;
                let (size, copied) = (entry.size(), copy(&mut entry, &mut file)?);
                if copied != size {
                    return Err(Extract::Read(format!("it ends inside {name}")));
                }
                files.insert(name, path);
            }
            // Older versions of `docker save` link a layer that two images have.
            (Some(name), kind @ (EntryType::Symlink | EntryType::Link)) => {
                let target = entry.link_name_bytes().and_then(|target| String::from_utf8(target.into_owned()).ok());
                let base = match (kind, name.rsplit_once('/')) {
                    (EntryType::Symlink, Some((folder, _))) => format!("{folder}/"),
                    _ => String::new(),
                };
                if let Some(target) = target.and_then(|target| normalize(&format!("{base}{target}"))) {
                    links.insert(name, target);
                }
            }
            // Its holes would be read as zeros.
            (_, EntryType::GNUSparse) => return Err(Extract::Read("a sparse file is in it".into())),
            _ => {}
        }
        // What is left of it is skipped here, so that it does not count as headers.
        io::copy(&mut entry, &mut io::sink()).map_err(not_tar)?;
        allowance.set(ARCHIVE_HEADER_BYTES_MAX);
    }
    Ok(Files::Tar { files, links })
}

/// Ends with an error when the headers before one entry are longer than `allowance`: they are read to memory.
struct HeaderLimit<R> {
    inner: R,
    allowance: Rc<Cell<u64>>,
}

impl<R: Read> Read for HeaderLimit<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let allowed = self.allowance.get();
        if allowed == 0 && !buffer.is_empty() {
            return Err(io::Error::other("the headers of one entry are longer than the limit"));
        }
        let length = buffer.len().min(usize::try_from(allowed).unwrap_or(usize::MAX));
        let bytes = self.inner.read(&mut buffer[..length])?;
        self.allowance.set(allowed.saturating_sub(bytes as u64));
        Ok(bytes)
    }
}

fn copy(from: &mut impl Read, to: &mut impl io::Write) -> Result<u64, Extract> {
    let (mut buffer, mut total) = (vec![0; 256 << 10], 0);
    loop {
        let bytes = from.read(&mut buffer).map_err(|why| Extract::Read(format!("it cannot be read: {why}")))?;
        if bytes == 0 {
            return Ok(total);
        }
        to.write_all(&buffer[..bytes]).map_err(Extract::Write)?;
        total += bytes as u64;
    }
}

/// The name without `.` and `..`; none if it leads out of the archive. It is a key of a table and never a path.
fn normalize(name: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_past_its_bytes_is_refused() {
        let mut tar = tar::Builder::new(Vec::new());
        for name in ["a", "b", "c"] {
            let mut header = tar::Header::new_gnu();
            header.set_size(1000);
            header.set_mode(0o644);
            tar.append_data(&mut header, name, [0; 1000].as_slice()).expect("appended");
        }
        let bytes = tar.into_inner().expect("finished");
        let folder = tempfile::tempdir().expect("a folder");
        assert!(extract(bytes.as_slice(), folder.path(), 3000).is_ok());
        match extract(bytes.as_slice(), folder.path(), 2999) {
            Err(Extract::Read(detail)) => assert_eq!(detail, "its entries have more than 2999 bytes"),
            _ => panic!("taken"),
        }
    }
}
