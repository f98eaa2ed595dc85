package storage

import (
	"fmt"

	"github.com/lofamo/lofamo/pkg/fault"
)

// CopyArea is a cell of a half's file, for tools and the injection campaign.
type CopyArea struct {
	Name    string
	Offsets [2]int // of both copies, in the file, in bytes
	Size    int
}

// CopyAreas lists the cells of a half's file.
func CopyAreas(half fault.Half) []CopyArea {
	l := newLayout(half)
	out := make([]CopyArea, 0, len(l.all))
	for _, c := range l.all {
		out = append(out, CopyArea{cellName(c.number), [2]int{c.at, l.half + c.at}, c.size})
	}
	return out
}

// UsedBytes returns the number of bytes of a cell that count, if its length field is right.
func UsedBytes(cell []byte) int {
	if blank(cell) {
		return 0
	}
	return min(headerSize+int(le.Uint32(cell[4:])), len(cell))
}

func cellName(number uint32) string {
	switch {
	case number == numberHead:
		return "head"
	case number == numberNumbers:
		return "numbers"
	case number == numberPaths:
		return "path sessions"
	case number == numberSeen:
		return "seen broadcasts"
	case number == numberSensors:
		return "sensors"
	case number == numberBaseline:
		return "baselines"
	case number >= numberReport:
		return fmt.Sprintf("report %d", number-numberReport)
	case number >= numberExpress:
		return fmt.Sprintf("express %d", number-numberExpress)
	case number >= numberRelay:
		return fmt.Sprintf("relay %d", number-numberRelay)
	case number >= numberHop:
		return fmt.Sprintf("hop %d", number-numberHop)
	case number >= numberCounters:
		return fmt.Sprintf("counters %d", number-numberCounters)
	default:
		return fmt.Sprintf("session %d", number-numberSession)
	}
}
