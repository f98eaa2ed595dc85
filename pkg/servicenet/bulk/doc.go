// Package bulk moves large objects (diagnostic bundles, register histories, kernel log extracts; at most 64 MiB) from
// a half of a node to a supervisor by rendezvous (seed 002 §5.3). The sender announces an object first, and the
// receiver pulls it in chunks, several pulls ahead, by any way that works. The sender computes the checksum of the
// whole while the announcement is already under way.
//
//	supervisor (Receiver)                    half (Sender)
//	  BulkRequest            ──────────►       gather
//	                         ◄──────────     BulkAnnounce (nothing known yet)
//	                         ◄──────────     BulkAnnounce with the size; the shell begins to sum
//	  BulkPull of 8 chunks   ──────────►
//	                         ◄──────────     chunk packets, paced
//	  BulkPull of the next   ──────────►
//	                         ◄──────────     BulkAnnounce with the checksum: complete
//	  ...
//	  BulkPull, done         ──────────►       forget
//
// The messages travel in envelopes that other packages sign, open and check; this package makes and reads their
// contents. It is pure: it reads no clock, no file and no randomness. It decides neither who may request an object
// nor what an object contains.
//
// # Chunk packets
//
// A chunk is a packet of its own, sealed with a key that the two X25519 keys of BulkRequest and
// BulkAnnounce give (package keys, label "lofamo.v1 bulk", context: transfer, node, half as a byte,
// supervisor; the first 16 bytes). Integers are big endian.
//
//	offset  size
//	     0     1  0xB1; an Envelope begins with 0x0A
//	     1     1  version, 1
//	     2    16  transfer
//	    18     4  index of the chunk
//	    22     1  n, 1 to 128
//	    23     n  id of the supervisor for which it is, so that a half that relays it need not open it
//	  23+n     m  AES-128-GCM over 1 to 1,024 bytes of the object: nonce 8 zero bytes and the index,
//	              additional data all that stands before; m is 16 more than the bytes
//
// A packet has at most 1,200 bytes, which a torus relay carries. All of a header is fixed by transfer
// and index, and so is the object, so that a nonce never covers two different packets. A sender that
// gathers again has another key.
//
// # Bounds
//
// A Sender keeps Transfers objects (in files of the shell) and, for each, up to 512 requested indices. A Receiver
// keeps at most Buffer chunks between the consumer's position and the newest chunk. The receiver requests lost chunks
// again; chunks are not acknowledged.
package bulk
