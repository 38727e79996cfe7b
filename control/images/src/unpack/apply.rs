//! Applies one layer's tar stream, entry by entry, to a folder in the form that overlayfs needs.
//!
//! A layer is unpacked by itself: a link or folder that only a lower layer has is not seen. An entry below a link of this
//! layer goes where the link leads inside the layer. A folder without an entry of its own is created with root as owner and mode
//! 0755, as Docker does.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timespec, XattrFlags, fsetxattr, linkat, mkdirat, mknodat, openat2, symlinkat,
};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

use super::decompress::TarStream;
use super::entry_name::{self, EntryName};
use super::metadata::{self, Metadata};
use super::root_folder::{
    OPAQUE_ATTRIBUTE, RootFolder, beneath, is_whiteout, kind_of, make_whiteout, open_folder, remove, set_opaque,
};
use super::{LayerSummary, UnpackError};
use crate::limits::LayerLimits;

const COPY_BYTES: usize = 256 << 10;
/// Between two reports of progress. The parent checks after each report whether the pull was cancelled.
const PROGRESS_BYTES: u64 = 4 << 20;
/// Between two reports of progress if the entries are small.
const PROGRESS_ENTRIES: u64 = 1024;
/// A header and the padding of the entry before it.
const HEADER_BLOCKS_BYTES: u64 = 2 * BLOCK_BYTES;
/// All of a tar stream comes in blocks of this size.
const BLOCK_BYTES: u64 = 512;

/// Unpacks the compressed `file` to `root`. `progress` gets the bytes that were written so far.
pub(super) fn apply(
    file: File,
    media_type: &str,
    root: OwnedFd,
    limits: &LayerLimits,
    progress: &mut dyn FnMut(u64),
) -> Result<LayerSummary, UnpackError> {
    let stream = TarStream::start(file, media_type, limits)?;
    let bounds = Rc::new(Bounds::default());
    let mut archive = Archive::new(Bounded { inner: stream, position: 0, bounds: Rc::clone(&bounds) });
    let mut layer = Layer::new(root, limits, progress);
    let outcome = unpack_entries(&mut archive, &mut layer, &bounds, limits);
    let stream = archive.into_inner().inner;
    match outcome {
        Ok(()) => {
            let diff_id = stream.finish()?;
            layer.set_folder_times()?;
            Ok(LayerSummary { diff_id, bytes: layer.bytes, entries: layer.entries, hides_lower: layer.hides_lower })
        }
        // A stream that fails to decompress looks like a tar that ends early; the thread has the cause.
        Err(UnpackError::Corrupt { detail }) => match stream.finish() {
            Err(why @ (UnpackError::TooLarge { .. } | UnpackError::Storage { .. })) => Err(why),
            Err(UnpackError::Corrupt { detail }) if detail.contains("decompress") => {
                Err(UnpackError::Corrupt { detail })
            }
            _ => Err(UnpackError::Corrupt { detail }),
        },
        Err(error) => Err(error),
    }
}

fn unpack_entries(
    archive: &mut Archive<Bounded>,
    layer: &mut Layer<'_>,
    Bounds { allowance, content_end }: &Bounds,
    limits: &LayerLimits,
) -> Result<(), UnpackError> {
    let headers = limits.header_bytes_max + HEADER_BLOCKS_BYTES;
    let not_tar = |why: io::Error| UnpackError::corrupt(format!("it is not a valid tar: {why}"));
    allowance.set(headers);
    let entries = archive.entries().map_err(not_tar)?;
    for entry in entries {
        let mut entry = entry.map_err(not_tar)?;
        allowance.set(u64::MAX);
        let bytes = entry.header().entry_size().unwrap_or(u64::MAX);
        content_end.set(entry.raw_file_position().saturating_add(bytes));
        layer.entry(&mut entry)?;
        // What is left of it is skipped here, so that it does not count as headers.
        io::copy(&mut entry, &mut io::sink()).map_err(not_tar)?;
        allowance.set(headers);
        if layer.entries.is_multiple_of(PROGRESS_ENTRIES) {
            layer.report();
        }
    }
    // Zeros behind the end of the archive are part of the digest and have no bound but the stream's.
    allowance.set(u64::MAX);
    Ok(())
}

/// Bounds of the tar stream at the current position.
#[derive(Debug, Default)]
struct Bounds {
    /// So many bytes until the next content.
    allowance: Cell<u64>,
    /// Where the content of the last entry ends.
    content_end: Cell<u64>,
}

/// Ends with an error when the headers before one entry are longer than they may be: they are read to memory. Fills the last block
/// of a stream that ends with the content of its last entry: umoci writes such layers, and Docker and containerd take them.
struct Bounded {
    inner: TarStream,
    position: u64,
    bounds: Rc<Bounds>,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let allowed = self.bounds.allowance.get();
        if allowed == 0 && !buffer.is_empty() {
            return Err(io::Error::other("the headers of one entry are longer than the limit"));
        }
        let length = buffer.len().min(usize::try_from(allowed).unwrap_or(usize::MAX));
        let mut bytes = self.inner.read(&mut buffer[..length])?;
        let missing = self.position.next_multiple_of(BLOCK_BYTES) - self.position;
        if bytes == 0 && missing > 0 && self.position >= self.bounds.content_end.get() {
            bytes = length.min(usize::try_from(missing).unwrap_or(0));
            buffer[..bytes].fill(0);
        }
        self.position = self.position.saturating_add(bytes as u64);
        self.bounds.allowance.set(allowed.saturating_sub(bytes as u64));
        Ok(bytes)
    }
}

/// The layer as far as it is unpacked.
struct Layer<'l> {
    root: RootFolder,
    limits: &'l LayerLimits,
    bytes: u64,
    entries: u64,
    /// The layer's root is opaque, which overlayfs ignores.
    hides_lower: bool,
    /// Set at the end, as each new entry changes its folder's time.
    folder_times: Vec<(Vec<Vec<u8>>, Timespec)>,
    folder_path_bytes: u64,
    /// Gets the bytes that were written so far.
    progress: &'l mut dyn FnMut(u64),
    /// Its last metadata.
    reported: u64,
}

impl<'l> Layer<'l> {
    fn new(root: OwnedFd, limits: &'l LayerLimits, progress: &'l mut dyn FnMut(u64)) -> Self {
        Self {
            root: RootFolder::new(root),
            limits,
            bytes: 0,
            entries: 0,
            hides_lower: false,
            folder_times: Vec::new(),
            folder_path_bytes: 0,
            progress,
            reported: 0,
        }
    }

    fn report(&mut self) {
        self.reported = self.bytes;
        (self.progress)(self.bytes);
    }

    fn entry(&mut self, entry: &mut Entry<'_, Bounded>) -> Result<(), UnpackError> {
        self.entries += 1;
        if self.entries.saturating_add(self.root.folders_made()) > self.limits.entries_max {
            return Err(UnpackError::TooLarge { what: "its number of entries".into(), limit: self.limits.entries_max });
        }
        if entry.header().entry_type().is_pax_global_extensions() {
            return Ok(());
        }
        let path = entry.path_bytes().into_owned();
        let shown = || String::from_utf8_lossy(&path[..path.len().min(200)]).into_owned();
        let name = entry_name::parse(&path).map_err(|why| UnpackError::corrupt(format!("entry {why}")))?;
        // Holes take no bytes of the stream, but are read as zeros: only a file's size is bounded.
        if entry.header().entry_type() == EntryType::GNUSparse && !matches!(name, EntryName::Child { .. }) {
            return Err(UnpackError::corrupt(format!("entry {:?}: only a file can be sparse", shown())));
        }
        let unpacked = match name {
            EntryName::AufsMetadata => Ok(()),
            EntryName::Root => self.root_entry(entry),
            EntryName::Opaque { folder } => self.opaque(&folder).map_err(EntryError::Storage),
            EntryName::Whiteout { folder, name } => self.whiteout(&folder, &name).map_err(EntryError::Storage),
            EntryName::Child { folder, name } => self.child(entry, folder, name, path.ends_with(b"/")),
        };
        unpacked.map_err(|error| match error {
            EntryError::Archive(detail) => UnpackError::corrupt(format!("entry {:?}: {detail}", shown())),
            EntryError::Storage(why) if is_layers_fault(&why) => {
                UnpackError::corrupt(format!("entry {:?}: {why}", shown()))
            }
            EntryError::Storage(why) => UnpackError::storage(&format!("entry {:?}", shown()), &why),
        })
    }

    fn root_entry(&mut self, entry: &mut Entry<'_, Bounded>) -> Result<(), EntryError> {
        if entry.header().entry_type() != EntryType::Directory {
            return Err(EntryError::Archive("the layer's root is not a folder".into()));
        }
        let metadata = Metadata::read(entry)?;
        metadata.apply(self.root.root())?;
        self.remember_time(Vec::new(), metadata.modified)
    }

    fn opaque(&mut self, folder: &[Vec<u8>]) -> io::Result<()> {
        self.hides_lower |= folder.is_empty();
        let (Some(name), parents) = (folder.last(), &folder[..folder.len().saturating_sub(1)]) else {
            return Ok(fsetxattr(self.root.root(), OPAQUE_ATTRIBUTE, b"y", XattrFlags::empty())?);
        };
        self.root.folder(folder)?; // made if it is missing
        set_opaque(self.root.folder(parents)?, name)
    }

    /// Hides `name` of the lower layers, never that of this one: there it makes a folder opaque.
    fn whiteout(&mut self, folder: &[Vec<u8>], name: &[u8]) -> io::Result<()> {
        let at = self.root.folder(folder)?;
        match kind_of(at, name) {
            Ok((FileType::Directory, _)) => set_opaque(at, name),
            Ok(_) => Ok(()), // it hides the lower one already
            Err(Errno::NOENT) => make_whiteout(at, name),
            Err(why) => Err(why.into()),
        }
    }

    fn child(
        &mut self,
        entry: &mut Entry<'_, Bounded>,
        folder: Vec<Vec<u8>>,
        name: Vec<u8>,
        has_slash: bool,
    ) -> Result<(), EntryError> {
        let metadata = Metadata::read(entry)?;
        match entry.header().entry_type() {
            // Before there was a type for folders, they ended with a slash.
            EntryType::Directory => self.make_folder(folder, name, &metadata),
            EntryType::Regular if has_slash => self.make_folder(folder, name, &metadata),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.make_file(entry, &folder, &name, &metadata)
            }
            EntryType::Symlink => {
                let target = link_name(entry)?;
                let at = self.root.folder(&folder)?;
                make_over(at, &name, |at, name| symlinkat(target.as_slice(), at, name))?;
                metadata.apply_at(at, &name, true)?;
                self.root.forget_last();
                Ok(())
            }
            EntryType::Link => self.make_hard_link(entry, &folder, &name),
            EntryType::Fifo => {
                let at = self.root.folder(&folder)?;
                let mode = Mode::from_raw_mode(0o600);
                make_over(at, &name, |at, name| mknodat(at, name, FileType::Fifo, mode, 0))?;
                Ok(metadata.apply_at(at, &name, false)?)
            }
            // A container gets the devices that it may have from its runtime.
            EntryType::Char | EntryType::Block => Ok(()),
            other => Err(EntryError::Archive(format!("type {:?} is not known", char::from(other.as_byte())))),
        }
    }

    fn make_folder(&mut self, mut folder: Vec<Vec<u8>>, name: Vec<u8>, metadata: &Metadata) -> Result<(), EntryError> {
        let at = self.root.folder(&folder)?;
        let mode = Mode::from_raw_mode(0o700);
        let mut hides = false;
        match kind_of(at, &name) {
            Ok((FileType::Directory, _)) => {}
            Ok((_, stat)) => {
                hides = is_whiteout(&stat);
                remove(at, &name)?;
                mkdirat(at, name.as_slice(), mode)?;
            }
            Err(Errno::NOENT) => mkdirat(at, name.as_slice(), mode)?,
            Err(why) => return Err(why.into()),
        }
        if hides {
            set_opaque(at, &name)?;
        }
        metadata.apply(open_folder(at, &name)?.as_fd())?;
        folder.push(name);
        // A link may have been here until now.
        self.root.forget_last();
        self.remember_time(folder, metadata.modified)
    }

    fn remember_time(&mut self, folder: Vec<Vec<u8>>, modified: Timespec) -> Result<(), EntryError> {
        self.folder_path_bytes += folder.iter().map(|part| part.len() as u64 + 32).sum::<u64>();
        if self.folder_path_bytes > self.limits.folder_path_bytes_max {
            let limit = self.limits.folder_path_bytes_max;
            return Err(EntryError::Archive(format!("the paths of all folders have more than {limit} bytes")));
        }
        self.folder_times.push((folder, modified));
        Ok(())
    }

    fn make_file(
        &mut self,
        entry: &mut Entry<'_, Bounded>,
        folder: &[Vec<u8>],
        name: &[u8],
        metadata: &Metadata,
    ) -> Result<(), EntryError> {
        // Sparse files are longer here than in the stream; the bound is for both.
        if self.bytes.saturating_add(entry.size()) > self.limits.bytes_max {
            let limit = self.limits.bytes_max;
            return Err(EntryError::Archive(format!(
                "with its {} bytes the layer passes the limit of {limit}",
                entry.size()
            )));
        }
        let at = self.root.folder(folder)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |at: BorrowedFd<'_>, name: &[u8]| openat2(at, name, flags, Mode::from_raw_mode(0o600), beneath());
        let mut file = File::from(make_over(at, name, open)?);
        let mut buffer = vec![0; COPY_BYTES.min(usize::try_from(entry.size()).unwrap_or(COPY_BYTES))];
        let mut left = entry.size();
        while left > 0 {
            let bytes = entry.read(&mut buffer).map_err(|why| EntryError::Archive(why.to_string()))?;
            if bytes == 0 {
                return Err(EntryError::Archive("the archive ends inside it".into()));
            }
            file.write_all(&buffer[..bytes])?;
            left = left.saturating_sub(bytes as u64);
            self.bytes += bytes as u64;
            if self.bytes - self.reported >= PROGRESS_BYTES {
                self.report();
            }
        }
        Ok(metadata.apply(file.as_fd())?)
    }

    /// To a file of this layer only.
    fn make_hard_link(
        &mut self,
        entry: &Entry<'_, Bounded>,
        folder: &[Vec<u8>],
        name: &[u8],
    ) -> Result<(), EntryError> {
        let text = link_name(entry)?;
        let shown = String::from_utf8_lossy(&text).into_owned();
        let refused = |why: &str| EntryError::Archive(format!("hard link to {shown:?}: {why}"));
        let mut target = entry_name::components(&text).map_err(|why| refused(&why))?;
        let target_name = target.pop().ok_or_else(|| refused("the layer's root is not a file"))?;
        let missing = |_| refused("this layer has no such file");
        let target_folder = self.root.open_existing(&target).map_err(missing)?;
        let (kind, stat) = kind_of(target_folder.as_fd(), &target_name).map_err(missing)?;
        if !matches!(kind, FileType::RegularFile | FileType::Symlink | FileType::Fifo) {
            return Err(refused("it is not a file"));
        }
        let at = self.root.folder(folder)?;
        if kind_of(at, name).is_ok_and(|(_, old)| (old.st_ino, old.st_dev) == (stat.st_ino, stat.st_dev)) {
            return Ok(()); // it is that file
        }
        let link = |at: BorrowedFd<'_>, name: &[u8]| {
            linkat(&target_folder, target_name.as_slice(), at, name, AtFlags::empty())
        };
        make_over(at, name, link)?;
        self.root.forget_last();
        Ok(())
    }

    /// A folder that a later entry replaced is left as that one made it.
    fn set_folder_times(&mut self) -> Result<(), UnpackError> {
        for (path, modified) in std::mem::take(&mut self.folder_times).into_iter().rev() {
            let set = match path.split_last() {
                None => metadata::set_times(self.root.root(), modified),
                Some((name, parents)) => match self.root.open_existing(parents) {
                    Err(_) => continue,
                    Ok(at) => match open_folder(at.as_fd(), name) {
                        Err(_) => continue,
                        Ok(folder) => metadata::set_times(folder, modified),
                    },
                },
            };
            set.map_err(|why| UnpackError::storage("the times of folders", &why))?;
        }
        Ok(())
    }
}

/// Makes `name` with `make`; what has the name already is removed first.
fn make_over<T>(
    at: BorrowedFd<'_>,
    name: &[u8],
    make: impl Fn(BorrowedFd<'_>, &[u8]) -> Result<T, Errno>,
) -> io::Result<T> {
    match make(at, name) {
        Err(Errno::EXIST) => {
            remove(at, name)?;
            Ok(make(at, name)?)
        }
        made => Ok(made?),
    }
}

fn link_name(entry: &Entry<'_, Bounded>) -> Result<Vec<u8>, EntryError> {
    let name = entry.link_name_bytes().map(std::borrow::Cow::into_owned).unwrap_or_default();
    if name.is_empty() || name.contains(&0) {
        return Err(EntryError::Archive("the link has no valid target".into()));
    }
    Ok(name)
}

/// Errors of the file system that only the layer's own names and links can bring about.
fn is_layers_fault(why: &io::Error) -> bool {
    let code = why.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        code,
        Some(
            Errno::NAMETOOLONG | Errno::LOOP | Errno::NOTDIR | Errno::NOENT | Errno::INVAL | Errno::ILSEQ | Errno::XDEV
        )
    )
}

enum EntryError {
    /// The archive is to blame.
    Archive(String),
    Storage(io::Error),
}

impl From<String> for EntryError {
    fn from(why: String) -> Self {
        Self::Archive(why)
    }
}

impl From<io::Error> for EntryError {
    fn from(why: io::Error) -> Self {
        Self::Storage(why)
    }
}

impl From<Errno> for EntryError {
    fn from(why: Errno) -> Self {
        Self::Storage(why.into())
    }
}
