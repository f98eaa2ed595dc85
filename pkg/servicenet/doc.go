// Package servicenet is the service network's part in the delivery of reports: the codec between package fault and
// the wire messages, the envelopes and their proofs, the sender's log and its paths (Outbox), and the receiver's
// memory of received reports (Inbox). Its purpose is in seed 001 §III-D, the checksum in seed 002 §5, the paths in
// seed 004 §II-B and §IV. The two acknowledgements and the rails are the project's own.
//
// It is pure: it reads no clock, opens no socket, starts no goroutine and logs nothing. Impure parts are in packages
// below it: the rails (direct, gossip; the torus rail belongs to the agent) and the table of sessions (sessions). The
// packages checksum, keys and bulk beside it are pure as well. It decides nothing about health, except the conclusion
// from missing acknowledgements about the sender's own service network.
//
// # On the wire
//
// Everything but the chunks of a bulk transfer is an Envelope of at most MaxDatagram bytes
// (api/lofamo/v1/wire.proto):
//
//	Envelope { payload = Message, certificate + signature | session + MAC, checksum }
//	Message  { a body, acks, or both }
//
//	body or acks                who may say it                  a MAC will do
//	Reports                     the half itself                 when all are digests
//	Answer, PathRequest,
//	PathAck, BulkAnnounce,
//	RenewRequest                the half itself                 no
//	answers to orders           the half itself                 no
//	Interest                    the host half itself            no
//	Relayed { inner, hops }     the host half that is the       no
//	                            last hop
//	acks, Again, Challenge,
//	FaultUpdate                 a supervisor                    yes
//	Downcall { node, inner }    a supervisor                    yes; inner is signed
//	PathReply, BulkRequest,
//	BulkPull, orders,
//	DenyPart, RenewReply        a supervisor                    no
//
// Orders and their answers are listed by kind in orderForms. PeerStatus, MapFindings and ConfigurationStatus name no
// half: the DNP half signs them.
//
// A Relayed holds reports, an answer, an answer to an order or an announcement; a Downcall holds any message of a
// supervisor. The inner message is an envelope of its own, with the checksum and the signature of its origin. No
// message is allowed to both roles, so one thrown back at its sender is refused even where both ends have the same
// key.
//
// A receiver looks, in this order, at
//
//	the size and the form   RefusedTooLong, RefusedMalformed
//	the checksum            RefusedChecksum
//	the signature           RefusedSignature, RefusedRevoked
//	or the MAC              RefusedSession when the session is not known, RefusedSignature
//	the message's form      RefusedMalformed, RefusedUnknownMessage
//	every field             RefusedField, RefusedNested
//	who says it             RefusedRole, RefusedOrigin
//
// and allocates next to nothing before the message is proved. Unknown fields are kept and ignored, an unknown body is
// errUnknownMessage, and a field outside its range is refused with a Refusal to count.
//
// # Damage
//
// The checksum covers all bytes before it in the envelope, tags and lengths as well. With any algorithm, every single
// flipped bit and every cut is refused as damage (IsDamaged), before any signature is checked: the receiver requests
// the message again and never counts it as forgery. Several flipped bits pass as rarely as the algorithm allows, and
// then fail the signature. Without a checksum (NONE) the signature or MAC refuses the same bits, but damage and
// forgery look the same. NONE is explicit on the wire, so that a lost checksum does not look like it. Fields that a
// later version adds to the envelope are not covered. A forger computes the checksum too: it authenticates nothing.
//
// # Sessions
//
// PathRequest and PathReply carry an X25519 key each; the two give a SessionKey (PathExchange), whose MAC costs a
// fiftieth of a signature. It proves only messages that are replaced soon, or that go from one supervisor to one
// half; a message that a third party must believe is signed. Sessions live in memory. After a restart a MAC is of an
// unknown session; then the half signs its retry and requests the path again.
//
// # Delivery
//
// An Outbox sends waiting reports, several in one datagram (roomFor), on one path of the direct rail, and on more rails for as long as no
// RECEIVED comes; it keeps each report until COMMITTED. The delivery status of its reports goes along with its digests, by the torus in
// numbers only (statusFor), followed by the health of the halves where there is room (FitHealth). Of the paths, one per service interface
// and supervisor, one is the primary and another a loaded alternate (seed 004 §II-B), so that a switch needs no message. Reports that a
// spool on disk kept over a restart come back by Outbox.Restore, under their old ids.
//
// Receivers drop duplicates by (origin, epoch, sequence number) in an Inbox whose positions are stored with the
// commit. It knows the newest epochs of an origin, so that restored reports count once. Both sides hold the same
// bound: no report is sent WindowBits or more ahead of an older one in the log, so the window never closes over a
// report that is still due.
package servicenet
