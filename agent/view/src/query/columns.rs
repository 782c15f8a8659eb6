//! Reads the columns of a row group by name, and checks their types.

use std::collections::HashMap;

use anyhow::{Context as _, Result, ensure};
use parquet::{
    basic::{LogicalType, TimeUnit},
    column::reader::get_typed_column_reader,
    data_type::{ByteArray, ByteArrayType, DataType, Int64Type},
    file::reader::RowGroupReader,
};

/// Rows to reserve space for in advance. Our own row groups have a tenth of it.
const MOST_ROWS: usize = 1 << 20;
pub(super) struct Columns<'a> {
    pub group: &'a dyn RowGroupReader,
    /// Column indices by name.
    pub places: &'a HashMap<String, usize>,
}

impl Columns<'_> {
    fn place(&self, name: &str) -> Result<usize> {
        let place = self.places.get(name).copied();
        place.with_context(|| {
            format!("it has no column {name}: these are no flows, or they are of another version")
        })
    }

    /// The values, and for each row whether it has one.
    fn values<T: DataType>(&self, name: &str) -> Result<(Vec<T::T>, Vec<i16>)> {
        let place = self.place(name)?;
        let rows = usize::try_from(self.group.metadata().num_rows())?;
        let column = self.group.metadata().schema_descr().column(place);
        ensure!(
            column.physical_type() == T::get_physical_type() && column.max_rep_level() == 0,
            "its column {name} is of another type: these are no flows"
        );
        let mut reader = get_typed_column_reader::<T>(self.group.get_column_reader(place)?);
        // A damaged file may claim any number of rows.
        let (mut values, mut levels) = (Vec::with_capacity(rows.min(MOST_ROWS)), Vec::new());
        let may_be_none = column.max_def_level() > 0;
        let mut read = 0;
        while read < rows {
            let levels = may_be_none.then_some(&mut levels);
            let (records, _, _) = reader.read_records(rows - read, levels, None, &mut values)?;
            ensure!(records > 0, "its column {name} has too few rows");
            read += records;
        }
        if !may_be_none {
            levels = vec![1; rows];
        }
        Ok((values, levels))
    }

    /// One value per row.
    pub fn optional<T: DataType>(&self, name: &str) -> Result<Vec<Option<T::T>>> {
        let (values, levels) = self.values::<T>(name)?;
        let mut values = values.into_iter();
        let each = levels.into_iter();
        Ok(each
            .map(|level| if level > 0 { values.next() } else { None })
            .collect())
    }

    pub fn required<T: DataType>(&self, name: &str) -> Result<Vec<T::T>> {
        let (values, levels) = self.values::<T>(name)?;
        ensure!(
            values.len() == levels.len(),
            "its column {name} has rows without a value"
        );
        Ok(values)
    }

    pub fn counters(&self, name: &str) -> Result<Vec<u64>> {
        let values = self.required::<Int64Type>(name)?;
        Ok(values.into_iter().map(i64::cast_unsigned).collect())
    }

    /// One text per row.
    pub fn texts(&self, name: &str) -> Result<Vec<Option<ByteArray>>> {
        self.optional::<ByteArrayType>(name)
    }

    /// Unix time in microseconds.
    pub fn times(&self, name: &str) -> Result<Vec<i64>> {
        let column = self
            .group
            .metadata()
            .schema_descr()
            .column(self.place(name)?);
        let micros = LogicalType::timestamp(true, TimeUnit::MICROS);
        ensure!(
            column.logical_type_ref() == Some(&micros),
            "its column {name} has no times of UTC in microseconds"
        );
        self.required::<Int64Type>(name)
    }
}
