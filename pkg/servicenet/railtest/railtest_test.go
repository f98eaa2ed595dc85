package railtest

import (
	"testing"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

func TestFake(t *testing.T) {
	Run(t, func(*testing.T) Harness {
		f := NewFake("s0", servicenet.MaxDatagram, 100)
		return Harness{
			Rail: f, Target: "s0", Unknown: "s9", Limit: servicenet.MaxDatagram,
			Read: f.Read, Refused: f.Refused, Lost: func() uint64 { return 0 }, Close: f.Close,
		}
	})
}
