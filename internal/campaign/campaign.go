// Package campaign tests delivery on real processes and sockets. Senders with the outbox, spool and sessions of a half
// send tens of thousands of reports through a bad network to three supervisors, while both ends are killed with
// SIGKILL. Afterwards every report is accounted for. The package contains only tests.
//
// A sender's journal lists the reports that it made and that were in its spool. The supervisors' debug logs list the
// reports taken in each term and those committed (internal/supervisor/engine). An event in neither place did not
// happen.
package campaign
