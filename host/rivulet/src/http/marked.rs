//! Marked pictures among the objects: their index, their identity for a client, and their bytes.

use std::net::IpAddr;
use std::sync::Arc;

use rivulet_watermark::{Error, Picture};

use super::marks::{JPEG, Kind, Mark};
use super::object::Object;
use super::objects::Objects;
use super::read_error::ReadError;

impl Objects {
    /// What becomes of the file `object` at a path, for this client. `Err`: not known yet.
    pub(super) fn kind(&self, path: &[u8], object: &Arc<Object>, client: IpAddr) -> Result<Kind, ReadError> {
        let Some(marks) = self.marks() else { return Ok(Kind::Plain) };
        let mut first = [0; JPEG.len()];
        let length = first.len().min(object.identity().size as usize);
        self.read(object, 0, &mut first[..length])?;
        let name = path.strip_prefix(b"/").unwrap_or(path);
        if !marks.covers(name, &first) {
            return Ok(Kind::Plain);
        }
        let Ok(picture) = self.picture(object, name)? else { return Ok(Kind::Unfit) };
        let places = picture.mark(marks.text(client).as_bytes());
        let mark = Mark::new(object.identity(), &places);
        let identity = mark.identity(&places);
        Ok(Kind::Marked(mark, identity))
    }

    /// The index of a picture, which is computed if it is not there.
    fn picture(&self, object: &Arc<Object>, name: &[u8]) -> Result<Result<Arc<Picture>, Error>, ReadError> {
        let marks = self.marks().ok_or(ReadError::NotMine)?;
        let hash = object.identity().hash;
        if let Some(known) = marks.index(&hash) {
            return Ok(known);
        }
        let (of_job, object, name) = (marks.clone(), object.clone(), name.to_vec());
        self.index_soon(hash, move || of_job.compute(&object, &name));
        marks.index(&hash).ok_or(ReadError::NotYet)
    }

    /// Fills `out` with bytes of a marked picture.
    pub(super) fn read_marked(
        &self,
        object: &Arc<Object>,
        name: &[u8],
        mark: &Mark,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), ReadError> {
        let places = mark.places().ok_or(ReadError::NotMine)?;
        let picture = self.picture(object, name)?.map_err(|_| ReadError::NotMine)?;
        let read = picture.read_marked(&places, offset, out, |at, out| self.read(object, at, out));
        read.map_err(|error| match error {
            rivulet_watermark::ReadError::Places => ReadError::NotMine,
            rivulet_watermark::ReadError::Beyond => ReadError::Beyond,
            rivulet_watermark::ReadError::Original(error) => error,
        })
    }
}
