// Package spool is the sender's log of one half on disk: reports that are not yet COMMITTED outlive the half's
// restart. The authoritative log is in memory, in pkg/servicenet; this package only restores its content after a
// crash. Reports are opaque bytes here.
//
// It never stands in the way of detection: Append and Free hand over to a goroutine that writes in batches, one
// fdatasync for each. When the disk is full, broken or read-only it goes on without the disk, says so once, holds
// unwritten records in memory (bounded), and tries again. It does not decide which reports are sent, and a report
// that comes back although it was freed is only a duplicate: the receivers know its id.
//
// # On disk
//
// One file of a fixed size, allocated when it is made; all numbers little-endian:
//
//	offset   what
//	0        header
//	4096     the header again: one copy is enough
//	8192     ring of records, to the end of the file
//
//	header: 320 bytes
//	0    8   "LOFASPOL"
//	8    4   version: 1
//	12   1   half of the origin
//	13   1   length of the origin's node id
//	14   2   zero
//	16   8   size of the file, in bytes
//	24   16  id: random, drawn for each file
//	40   255 node id of the origin, then zeros
//	295  21  zero
//	316  4   CRC-32C of the 316 bytes before
//
//	record: begins at a multiple of 64 bytes in the ring, never reaches over its end
//	0    4   "LSPR"
//	4    4   CRC-32C of the file's id, the record's offset in the ring (8 bytes) and the record from
//	         byte 8 to its end
//	8    8   number: one more than that of the record before; the first is 1
//	16   8   tail: the number of the oldest record that counted when this one was written
//	24   4   length, without what fills the last 64 bytes
//	28   1   kind
//	29   3   zero
//
//	kind 1, report: adds or replaces
//	32   8   epoch
//	40   8   sequence number
//	48   16  boot id of the kernel under which it was added
//	64   8   CLOCK_BOOTTIME when it was added, in ns
//	72   n   payload, at most MaxPayload bytes
//
//	kind 2, free: takes away what records with lower numbers added
//	32   8   epoch
//	40   8n  sequence numbers; none at all only moves the tail
//
// The CRC covers id and offset, so that a record is good only where it was written: neither a former file's blocks
// nor a payload that contains records passes for one.
//
// # Recovery
//
// The whole ring is read, at every multiple of 64 bytes that no good record covers. The newest good record says by
// its tail which records count; records of the previous lap are older than that. Records are replayed in the order of
// their numbers. A garbled record is lost alone, and shows as a missing number.
//
// The disk may have seen any part of the last batch. Three rules of the writer (ring) ensure that no earlier record
// is lost: the tail that a batch carries follows from records already on disk; no record is overwritten before a tail
// behind it is on disk; a batch that failed is written again, the same bytes in the same place.
//
// A free is written only after the reports that were appended before it are on disk. So a report that is appended under a
// new id, and then freed under the old id, is always on disk under one of the two. Only a full ring frees first.
//
// # Space
//
// Reports may take half of the ring. The other half is for records of freed reports, and for moving: when old
// un-freed reports hold up the tail, they are copied forward. An un-freed report is never overwritten.
package spool
