//! Parses the tables that pmacct's programs print: comma-separated values below a header line.

use std::io::BufRead;

use anyhow::{Context as _, Result};

/// The sum of the column PACKETS.
pub fn packets(table: impl BufRead) -> Result<u64> {
    let mut lines = table.lines();
    let names = lines.next().context("the table is empty")??;
    let column = names.split(',').position(|name| name == "PACKETS");
    let column = column.with_context(|| format!("no column PACKETS in {names:?}"))?;
    let mut sum = 0;
    for line in lines {
        let line = line?;
        let packets = line.split(',').nth(column).map(str::parse::<u64>);
        let packets = packets.with_context(|| format!("{line:?} is too short for {names:?}"))?;
        sum += packets.with_context(|| format!("read the packets of {line:?}"))?;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output format of pmacctd 1.7.7.
    const FLOWS: &str = "SRC_IP,DST_IP,SRC_PORT,DST_PORT,PROTOCOL,PACKETS,BYTES\n\
                         11.0.0.0,10.77.0.1,0,53,udp,5,2490\n\
                         11.0.0.1,10.77.0.1,0,53,udp,6,2988\n";

    #[test]
    fn packets_are_summed_by_the_name_of_their_column() {
        assert_eq!(packets(FLOWS.as_bytes()).unwrap(), 11);
        // nfacctd prints a total each time it purges.
        let all = "PACKETS,BYTES\n347975,173291550\n652025,324708450\n";
        assert_eq!(packets(all.as_bytes()).unwrap(), 1_000_000);
        assert_eq!(packets("PACKETS,BYTES\n".as_bytes()).unwrap(), 0);
    }

    #[test]
    fn a_table_that_is_cut_off_or_strange_is_an_error() {
        let cut_off = FLOWS.strip_suffix(",6,2988\n").unwrap();
        for table in ["", "FLOWS,BYTES\n1,2\n", "PACKETS\nmany\n", cut_off] {
            assert!(packets(table.as_bytes()).is_err(), "{table}");
        }
    }
}
