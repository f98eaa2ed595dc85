// Package sensor measures what the two halves of a node know of their own machine: memory, the
// service network's interface and the peripherals for the host half; temperature, power and
// voltage for the DNP half (seed 001 §III-B, Table II).
//
// It turns measurements into states by thresholds and nothing more: it reports to nobody, votes on
// nothing and writes no register. Each source is a small package below this one; this one chooses
// them by configuration and polls them so that one that hangs does not hold up the others.
package sensor
