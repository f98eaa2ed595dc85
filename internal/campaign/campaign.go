// Package campaign tests delivery on real processes and sockets: senders with the outbox, spool and
// sessions of a half send tens of thousands of reports through a bad network to three supervisors, while
// both ends are killed with signal 9, and afterwards every report is accounted for. It has no code of its
// own beside the tests.
//
// A sender's journal says what it has made and what was in its spool; the supervisors' logs say, at debug
// level, what was taken in which term and what was committed (internal/supervisor/engine). What stands in
// neither place did not happen.
package campaign
