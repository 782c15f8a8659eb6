//! Decides which files to remove when there are too many.
//!
//! The count limit applies separately to the shared files and to each sender with files of its own, so a sender with
//! many files pushes out only its own. The byte limit applies to all together. While senders with their own files hold
//! more than half of it, the largest of them loses its oldest file. Otherwise the oldest file of all goes. So a
//! flooding sender cannot take more than half of the storage from the others.

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
};

use super::{
    Rotation,
    names::{Order, Owner},
};

/// A complete file.
pub(super) struct File {
    pub order: Order,
    /// `None` for a file with the flows of many senders.
    pub owner: Option<Owner>,
    pub bytes: u64,
    pub path: PathBuf,
}

/// The files of one owner, or all shared files.
#[derive(Default)]
struct Files {
    /// Oldest first.
    files: VecDeque<File>,
    bytes: u64,
}

impl Files {
    fn push(&mut self, file: File) {
        self.bytes += file.bytes;
        self.files.push_back(file);
    }

    fn pop(&mut self) -> Option<File> {
        let file = self.files.pop_front()?;
        self.bytes -= file.bytes;
        Some(file)
    }

    fn oldest(&self) -> Option<&Order> {
        self.files.front().map(|file| &file.order)
    }
}

/// The paths of the files to remove.
pub(super) fn files_to_remove(mut files: Vec<File>, rotation: &Rotation) -> Vec<PathBuf> {
    files.sort_by(|one, other| (&one.order, &one.owner).cmp(&(&other.order, &other.owner)));
    let most = rotation.files as usize;
    let (mut all, mut own) = (Files::default(), BTreeMap::<_, Files>::new());
    for mut file in files {
        match file.owner.take() {
            None => all.push(file),
            Some(owner) => own.entry(owner).or_default().push(file),
        }
    }
    let mut removed = Vec::new();
    while all.files.len() > most {
        removed.extend(all.pop());
    }
    for some in own.values_mut() {
        while some.files.len() > most {
            removed.extend(some.pop());
        }
    }
    loop {
        let of_owners: u64 = own.values().map(|some| some.bytes).sum();
        if of_owners + all.bytes <= rotation.total_bytes {
            break;
        }
        let owners = own.values_mut().filter(|some| !some.files.is_empty());
        let some = if of_owners > rotation.total_bytes / 2 {
            owners.max_by_key(|some| some.bytes)
        } else {
            let each = owners
                .chain([&mut all])
                .filter(|some| !some.files.is_empty());
            each.min_by(|one, other| one.oldest().cmp(&other.oldest()))
        };
        let Some(file) = some.and_then(Files::pop) else {
            break;
        };
        removed.push(file);
    }
    removed.into_iter().map(|file| file.path).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::Compression, *};

    /// What is left of files of ten bytes each, oldest first. `-` is a shared file, a letter the file of one sender.
    fn left(files: &str, most: u32, total_bytes: u64) -> String {
        let rotation = Rotation {
            bytes: 10,
            after: std::time::Duration::MAX,
            files: most,
            total_bytes,
            compression: Compression::None,
        };
        let numbered = files.chars().enumerate();
        let all = numbered.map(|(place, char)| File {
            order: Order::numbered(place as u32),
            owner: (char != '-').then(|| Owner::of(&char.to_string())),
            bytes: 10,
            path: place.to_string().into(),
        });
        let removed = files_to_remove(all.collect(), &rotation);
        let is_left = |place: usize| !removed.contains(&place.to_string().into());
        let left = files.chars().enumerate();
        left.filter_map(|(place, char)| is_left(place).then_some(char))
            .collect()
    }

    #[test]
    fn files_of_a_sender_count_for_themselves() {
        assert_eq!(left("---aaaaaaa-bb", 4, u64::MAX), "---aaaa-bb");
        assert_eq!(left("----", 3, u64::MAX), "---");
        assert_eq!(left("aaaa", 3, u64::MAX), "aaa");
    }

    #[test]
    fn senders_with_files_of_their_own_leave_half_to_all_others() {
        assert_eq!(left("-----aaaaaaaaaa", 99, 100), "-----aaaaa");
        assert_eq!(left("------aaaaaaaaaa", 99, 100), "-----aaaaa");
        // The senders with own files hold half of the limit, and so do the shared files.
        assert_eq!(left("-----aaaabbbbbbbb", 99, 100), "-----aaabb");
        assert_eq!(left("aaaabbbbbbbb-----", 99, 100), "aaabb-----");
        // Senders may use what the shared files do not need.
        assert_eq!(left("--aaaaaaaaaaaa", 99, 100), "--aaaaaaaa");
        // And the other way round.
        assert_eq!(left("-a-----------", 99, 100), "----------");
        assert_eq!(left("--a-----------", 99, 100), "----------");
        assert_eq!(left("------------aa", 99, 100), "--------aa");
        assert_eq!(left("a", 99, 5), "");
    }
}
