//! The copy of a page that a server has, if it has one.

/// The latest copy of a page that was ever here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Contents<D> {
    /// There is none; whoever backs the object has one.
    Absent,
    /// This is it; `None` is all zeros.
    Here(Option<D>),
    /// Whoever backs the object cannot supply it any more.
    Lost,
}

impl<D> Contents<D> {
    /// What whoever backs the object answered.
    pub(super) fn supplied(answer: Option<Option<D>>) -> Contents<D> {
        answer.map_or(Contents::Lost, Contents::Here)
    }
}
