package storage

import (
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// version is the version of the layout and of the payloads. A copy of another version is cold: an upgrade starts a
// half without earlier state.
const version = 3

// Bounds.
const (
	// NumReports is the number of reports in the copy: as many as in an outbox.
	NumReports = 1024
	// MaxReport is the longest report, marshalled. The outbox splits longer ones than servicenet.MaxReportSize.
	MaxReport = 384 - headerSize - reportHeader
	// NumRelay is how many messages the copy holds that are to be passed on.
	NumRelay = 64
	// MaxRelay is the longest relayed message, with its slot's other data.
	MaxRelay = 1440 - headerSize
	// NumExpress is the number of broadcasts in the copy that wait to be passed on.
	NumExpress = 64
	// MaxExpress is the longest broadcast, with its place's other data.
	MaxExpress = 1280 - headerSize
	// MaxExpressSeen bounds the record of seen broadcasts.
	MaxExpressSeen = 4096 - headerSize
	// MaxHop bounds the hops of a link.
	MaxHop = 256 - headerSize
	// MaxPathSessions bounds a host half's sessions with supervisors.
	MaxPathSessions = 4096 - headerSize
	// MaxBaselines bounds the self-test's baselines.
	MaxBaselines = 4096 - headerSize
	// MaxSensors bounds the states of the sensors.
	MaxSensors = 4096 - headerSize
)

// Numbers of the cells. Append only.
const (
	numberHead     = 1
	numberNumbers  = 2
	numberBaseline = 3
	numberPaths    = 4
	numberSeen     = 5
	numberPlace    = 6
	numberSensors  = 7
	numberSession  = 16
	numberCounters = 32
	numberHop      = 48
	numberRelay    = 256
	numberExpress  = 512
	numberReport   = 4096
)

// layout holds the places of a half's cells.
type layout struct {
	head, numbers           cell
	baselines, sensors      cell
	paths                   cell                     // of size 0 for a DNP half
	sessions, counters, hop [grid.NumDirections]cell // of size 0 for a host half, as are
	relay, express          []cell                   // none
	seen                    cell                     // of size 0 for a host half
	reports                 []cell
	place                   cell
	all                     []cell
	half                    int // of the file: where copy B begins
}

const pageSize = 4096

func newLayout(half fault.Half) layout {
	var l layout
	next := 0
	add := func(number uint32, size int) cell {
		c := cell{number, next, size}
		next += size
		l.all = append(l.all, c)
		return c
	}
	l.head = add(numberHead, 192)
	l.numbers = add(numberNumbers, 64)
	if half == fault.HalfDNP {
		for i := range uint32(grid.NumDirections) {
			l.sessions[i] = add(numberSession+i, 64)
			l.counters[i] = add(numberCounters+i, 128)
			l.hop[i] = add(numberHop+i, headerSize+MaxHop)
		}
	}
	l.baselines = add(numberBaseline, headerSize+MaxBaselines)
	l.sensors = add(numberSensors, headerSize+MaxSensors)
	if half == fault.HalfHost {
		l.paths = add(numberPaths, headerSize+MaxPathSessions)
	}
	if half == fault.HalfDNP {
		for i := range uint32(NumRelay) {
			l.relay = append(l.relay, add(numberRelay+i, headerSize+MaxRelay))
		}
		for i := range uint32(NumExpress) {
			l.express = append(l.express, add(numberExpress+i, headerSize+MaxExpress))
		}
		l.seen = add(numberSeen, headerSize+MaxExpressSeen)
	}
	for i := range uint32(NumReports) {
		l.reports = append(l.reports, add(numberReport+i, headerSize+reportHeader+MaxReport))
	}
	l.place = add(numberPlace, 64)
	l.half = (next + pageSize - 1) / pageSize * pageSize
	return l
}

// CopySize is the size of a half's file in bytes.
func CopySize(half fault.Half) int { return 2 * newLayout(half).half }
