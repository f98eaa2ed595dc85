// Package controller schedules the reads of nodes' management controllers, and interprets their answers. It is pure: no clock,
// no network. A controller is a witness of its node's power and never a judge: nothing here makes or changes a verdict.
//
// Start reading at Machine, which runs in the executor process. Package process has the clients that read. Book keeps the
// answers at the leader, and turns them into outside conditions of policies and into notes for people.
package controller

import (
	"strings"
	"time"
	"unicode"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Finding is the result of one look at a controller.
type Finding uint8

// The findings. Zero is none: no look has ended.
const (
	Off    Finding = iota + 1 // the controller reports that its node has no power
	On                        // the controller reports that its node has power
	Silent                    // no answer within the timeout, or no connection
	Wrong                     // no usable answer: an error, a wrong certificate, too long, malformed, or not credible
)

// Valid reports whether f is a finding.
func (f Finding) Valid() bool { return f >= Off && f <= Wrong }

// Plain reports whether the controller has stated its node's power.
func (f Finding) Plain() bool { return f == Off || f == On }

// String returns the finding for people.
func (f Finding) String() string {
	switch f {
	case Off:
		return "powered off"
	case On:
		return "powered on"
	case Silent:
		return "controller silent"
	case Wrong:
		return "controller error"
	default:
		return "not read"
	}
}

// Health is the health of the node's hardware by its controller's own rules. Zero is none: the controller states none.
type Health uint8

// The healths, by growing severity.
const (
	Good     Health = iota + 1 // no fault
	Warning                    // a fault that needs attention
	Critical                   // a fault that needs attention at once
)

// Valid reports whether h is a health.
func (h Health) Valid() bool { return h >= Good && h <= Critical }

// String returns the health for people.
func (h Health) String() string {
	switch h {
	case Good:
		return "good"
	case Warning:
		return "warning"
	case Critical:
		return "critical"
	default:
		return "not stated"
	}
}

// Limits of the texts of one controller.
const (
	MaxLines = 8   // entries of the event log, and sensors, of one answer
	MaxText  = 160 // bytes of one entry, sensor or error
)

// Answer is the result of one look at a controller.
type Answer struct {
	Finding Finding
	Health  Health
	Detail  string   // for people: the error, or a fault that the controller reports
	Log     []string // entries of the event log since the last look, oldest first
	Sensors []string // sensors, those out of range first
	Full    bool     // the look included log and sensors
}

// Reading is the last answer of a node's controller.
type Reading struct {
	Answer

	Node        fault.NodeID
	At          time.Time // of the answer
	Since       time.Time // from when on the finding has been the same
	HealthSince time.Time // from when on the health has been the same
	Last        Finding   // the last plain finding, On or Off; zero: none in this run of the process
	LastAt      time.Time // of the last plain finding
	Version     uint64    // grows with every answer of any controller
}

// cleaned bounds everything that a controller has written, and removes control characters.
func (a Answer) cleaned() Answer {
	if !a.Finding.Valid() {
		a.Finding = Wrong
	}
	if !a.Health.Valid() || !a.Finding.Plain() {
		a.Health = 0
	}
	a.Detail = Clean(a.Detail)
	a.Log, a.Sensors = CleanAll(a.Log), CleanAll(a.Sensors)
	return a
}

// CleanAll cleans the last MaxLines texts and drops empty ones.
func CleanAll(in []string) []string {
	var out []string
	for _, s := range in[max(0, len(in)-MaxLines):] {
		if s = Clean(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// Clean returns a text as one line of valid UTF-8 without control and formatting characters, at most MaxText bytes long.
func Clean(s string) string {
	s = s[:min(len(s), 4*MaxText)]
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "?"), func(r rune) bool {
		return fault.Hidden(r) || unicode.IsSpace(r)
	}), " ")
	s = strings.ToValidUTF8(s[:min(len(s), MaxText)], "") // drops a character that the cut has split
	return strings.TrimSuffix(s, " ")
}
