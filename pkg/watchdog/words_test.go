package watchdog

import (
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestDNPWordBits compares the bits with handwritten Tables III, IV and V.
func TestDNPWordBits(t *testing.T) {
	host := func(d grid.Direction) (w DNPWord) { w.NeighbourHostFailed[d.Index()] = true; return w }
	link := func(d grid.Direction, h Health) (w DNPWord) { w.Links[d.Index()] = h; return w }
	for _, tc := range []struct {
		name string
		word DNPWord
		want uint32
	}{
		{"valid", DNPWord{Valid: true}, 1 << 0},
		{"host Z-", host(grid.ZMinus), 1 << 1},
		{"host Z+", host(grid.ZPlus), 1 << 2},
		{"host Y-", host(grid.YMinus), 1 << 3},
		{"host Y+", host(grid.YPlus), 1 << 4},
		{"host X-", host(grid.XMinus), 1 << 5},
		{"host X+", host(grid.XPlus), 1 << 6},
		{"core sick", DNPWord{Core: HealthSick}, 1 << 7},
		{"power warning", DNPWord{Power: HealthSick}, 1 << 9},
		{"power alarm", DNPWord{Power: HealthBroken}, 1 << 10},
		{"voltage alarm", DNPWord{Voltage: HealthBroken}, 1 << 12},
		{"temperature warning", DNPWord{Temperature: HealthSick}, 1 << 13},
		{"temperature alarm", DNPWord{Temperature: HealthBroken}, 1 << 14},
		{"link Z- sick", link(grid.ZMinus, HealthSick), 1 << 15},
		{"link Z+ broken", link(grid.ZPlus, HealthBroken), 1 << 18},
		{"link Y- sick", link(grid.YMinus, HealthSick), 1 << 19},
		{"link Y+ broken", link(grid.YPlus, HealthBroken), 1 << 22},
		{"link X- sick", link(grid.XMinus, HealthSick), 1 << 23},
		{"link X+ sick", link(grid.XPlus, HealthSick), 1 << 25},
		{"link X+ broken", link(grid.XPlus, HealthBroken), 1 << 26},
	} {
		if got := tc.word.Encode(); got != tc.want {
			t.Errorf("%s: 0x%08x, want 0x%08x", tc.name, got, tc.want)
		}
		if got, err := DecodeDNPWord(tc.want); err != nil || got != tc.word {
			t.Errorf("%s: decoded %+v, %v", tc.name, got, err)
		}
	}
}

func TestHostWordBits(t *testing.T) {
	for _, tc := range []struct {
		word HostWord
		want uint32
	}{
		{HostWord{Valid: true}, 1},
		{HostWord{ServiceNetwork: HealthSick}, 1 << 1},
		{HostWord{ServiceNetwork: HealthBroken}, 1 << 2},
		{HostWord{Memory: HealthSick}, 1 << 3},
		{HostWord{Memory: HealthBroken}, 1 << 4},
		{HostWord{Peripheral0: HealthSick}, 1 << 5},
		{HostWord{Peripheral1: HealthBroken}, 1 << 8},
	} {
		if got := tc.word.Encode(); got != tc.want {
			t.Errorf("%+v: 0x%08x, want 0x%08x", tc.word, got, tc.want)
		}
		if got, err := DecodeHostWord(tc.want); err != nil || got != tc.word {
			t.Errorf("0x%08x: decoded %+v, %v", tc.want, got, err)
		}
	}
	sick := HostWord{ServiceNetwork: HealthSick, Memory: HealthBroken}
	if got := sick.Faults(); got != (NeighbourFaults{Memory: true}) || !got.Any() {
		t.Errorf("faults of %+v: %+v: the descriptor says broken only", sick, got)
	}
}

func TestDescriptorBits(t *testing.T) {
	for i, d := range []grid.Direction{grid.ZMinus, grid.ZPlus, grid.YMinus, grid.YPlus, grid.XMinus, grid.XPlus} {
		for j, n := range []NeighbourFaults{{ServiceNetwork: true}, {Memory: true}, {Peripheral0: true}, {Peripheral1: true}} {
			var w DescriptorWord
			w.Neighbours[d.Index()] = n
			want := uint32(1) << (4*i + j)
			if got := w.Encode(); got != want {
				t.Errorf("%s %+v: 0x%08x, want 0x%08x", d, n, got, want)
			}
			if got, err := DecodeDescriptorWord(want); err != nil || got != w {
				t.Errorf("0x%08x: decoded %+v, %v", want, got, err)
			}
		}
	}
}

// TestDecodersRefuse checks every single bit and every health field at every value against a naive rule: no pair at a
// field's place is 11, and no bit lies outside the mask.
func TestDecodersRefuse(t *testing.T) {
	for _, w := range []struct {
		addr   Addr
		mask   uint32
		pairs  []int
		decode func(uint32) (uint32, error)
	}{
		{AddrDNPWatchdog, 0x07ffffff, []int{7, 9, 11, 13, 15, 17, 19, 21, 23, 25},
			func(v uint32) (uint32, error) { w, err := DecodeDNPWord(v); return w.Encode(), err }},
		{AddrHostWatchdog, 0x1ff, []int{1, 3, 5, 7},
			func(v uint32) (uint32, error) { w, err := DecodeHostWord(v); return w.Encode(), err }},
		{AddrRemoteFaultDescriptor, 0xffffff, nil,
			func(v uint32) (uint32, error) { w, err := DecodeDescriptorWord(v); return w.Encode(), err }},
	} {
		check := func(v uint32) {
			bad := v&^w.mask != 0
			for _, p := range w.pairs {
				bad = bad || v>>p&3 == 3
			}
			got, err := w.decode(v)
			switch {
			case bad && err == nil:
				t.Errorf("%s: 0x%08x accepted", w.addr, v)
			case bad && !strings.Contains(err.Error(), w.addr.String()):
				t.Errorf("%s: 0x%08x: error %q does not name the address", w.addr, v, err)
			case !bad && (err != nil || got != v):
				t.Errorf("%s: 0x%08x comes back as 0x%08x, %v", w.addr, v, got, err)
			}
		}
		for i := range 32 {
			check(1 << i)
			check(^(uint32(1) << i))
			for j := range 32 {
				check(1<<i | 1<<j)
			}
		}
	}
}

func TestUndefinedHealthIsRefusedByReaders(t *testing.T) {
	w := HostWord{Memory: 7}
	if _, err := DecodeHostWord(w.Encode()); err == nil {
		t.Error("a health of 7 went through")
	}
	if HealthSick.String() != "sick" || Health(3).Valid() || !strings.Contains(Health(3).String(), "3") {
		t.Error("names of healths")
	}
}

func FuzzDecodeDNPWord(f *testing.F) {
	f.Add(uint32(1))
	f.Add(uint32(0x07ffffff))
	f.Fuzz(func(t *testing.T, v uint32) {
		if w, err := DecodeDNPWord(v); err == nil && w.Encode() != v {
			t.Errorf("0x%08x comes back as 0x%08x", v, w.Encode())
		}
	})
}

func FuzzDecodeHostWord(f *testing.F) {
	f.Add(uint32(0x155))
	f.Fuzz(func(t *testing.T, v uint32) {
		if w, err := DecodeHostWord(v); err == nil && w.Encode() != v {
			t.Errorf("0x%08x comes back as 0x%08x", v, w.Encode())
		}
	})
}

func FuzzDecodeDescriptorWord(f *testing.F) {
	f.Add(uint32(0x800001))
	f.Fuzz(func(t *testing.T, v uint32) {
		if w, err := DecodeDescriptorWord(v); err == nil && w.Encode() != v {
			t.Errorf("0x%08x comes back as 0x%08x", v, w.Encode())
		}
	})
}

func FuzzDecodeThresholds(f *testing.F) {
	f.Add(uint32(0xe4d08a62))
	f.Fuzz(func(t *testing.T, v uint32) {
		th, err := DecodeThresholds(v)
		if err != nil {
			return
		}
		if th.Encode() != v {
			t.Errorf("0x%08x comes back as 0x%08x", v, th.Encode())
		}
		for code := range 256 {
			if h := th.Classify(byte(code)); !h.Valid() {
				t.Errorf("%+v: code %d is %s", th, code, h)
			}
		}
	})
}
