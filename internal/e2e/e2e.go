// Package e2e tests the whole on real processes: a cluster is started, halves are killed and stopped
// with signals, links and networks are cut, and the fault map is asked for verdict, cause, evidence
// and the way it came. It has no code of its own beside the tests.
package e2e
