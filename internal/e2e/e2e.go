// Package e2e tests the whole on real processes: it starts a cluster, kills and stops halves with signals, cuts links
// and networks, and checks the fault map's verdict, cause, evidence and path. It has no code beside the tests.
package e2e
