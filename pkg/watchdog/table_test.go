package watchdog

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestRegisterMap compares the map with a handwritten Table VI.
func TestRegisterMap(t *testing.T) {
	want := map[Addr]uint32{
		0x0ec0: 0x07ffffff, 0x0ec4: 0x000001ff, 0x0ec8: 0x00ffffff,
		0x0f40: 0xff, 0x0f00: 0xffffffff, 0x0008: 0xff, 0x0140: 0xffffffff, 0x0144: 0x3fff,
		0x0440: 0xff, 0x0540: 0xff, 0x0640: 0xff, 0x0740: 0xff, 0x0840: 0xff, 0x0940: 0xff,
		0x0240: 0xff, 0x00c0: 0xfff,
		0x0f04: 0xffffffff, 0x0f08: 0xffffffff, 0x0f44: 0xff, 0x0f48: 0xff, 0x000c: 0x3f, // chosen here
	}
	regs := Registers()
	if len(regs) != len(want) {
		t.Errorf("%d registers, want %d", len(regs), len(want))
	}
	last := -1
	for _, r := range regs {
		if m, ok := want[r.Addr]; !ok || m != r.Mask {
			t.Errorf("%s %s: mask 0x%08x, want 0x%08x", r.Addr, r.Name, r.Mask, m)
		}
		if int(r.Addr) <= last || r.Addr%4 != 0 || r.Addr >= 4096 {
			t.Errorf("%s: out of order, unaligned or beyond the page", r.Addr)
		}
		last = int(r.Addr)
		if !r.Owner.Valid() || r.Name == "" || r.Meaning == "" || r.Source == "" {
			t.Errorf("%s: incomplete: %+v", r.Addr, r)
		}
		var covered uint32
		next := 0
		for _, f := range r.layout {
			if f.low != next {
				t.Errorf("%s: field %q begins at bit %d, want %d", r.Addr, f.name, f.low, next)
			}
			next = f.top + 1
			covered |= f.max() << f.low
		}
		if covered != r.Mask {
			t.Errorf("%s: fields cover 0x%08x, mask is 0x%08x", r.Addr, covered, r.Mask)
		}
	}
	if r, _ := Lookup(AddrHostWatchdog); r.Owner != fault.HalfHost || !r.HasValid {
		t.Errorf("host watchdog: %+v", r)
	}
	if AddrChannel(grid.XPlus) != 0x440 || AddrChannel(grid.YMinus) != 0x740 || AddrChannel(grid.ZMinus) != 0x940 {
		t.Error("addresses of the channels")
	}
}

// TestDescribeAgreesWithEncode: the table and the encoders describe one layout; each field that the one sets must read
// back by the other.
func TestDescribeAgreesWithEncode(t *testing.T) {
	w := DNPWord{Valid: true, Core: HealthSick, Power: HealthSick, Voltage: HealthBroken, Temperature: HealthBroken}
	w.NeighbourHostFailed[grid.YPlus.Index()] = true
	w.Links[grid.XMinus.Index()] = HealthBroken
	w.Links[grid.ZPlus.Index()] = HealthSick
	text := describe(t, AddrDNPWatchdog, w.Encode())
	for _, want := range []string{"0-0 Valid=1 valid", "4-4 Neighbour host Y+=1 fails", "5-5 Neighbour host X-=0 healthy",
		"7-8 DNP core=1 sick", "9-10 Power=1 warning", "11-12 Voltage=2 alarm", "13-14 Temperature=2 alarm",
		"17-18 Link Z+=1 sick", "23-24 Link X-=2 broken", "25-26 Link X+=0 normal"} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	var d DescriptorWord
	d.Neighbours[grid.XPlus.Index()].Memory = true
	if text := describe(t, AddrRemoteFaultDescriptor, d.Encode()); !strings.Contains(text, "21-21 X+ memory=1 broken\n") {
		t.Error(text)
	}
	for _, tc := range []struct {
		addr Addr
		v    uint32
		want string
	}{
		{AddrHostWatchdog, HostWord{ServiceNetwork: HealthBroken}.Encode(), "Service network=2 broken"},
		{AddrTemperature, 0xd5, "Temperature=213 85 °C"},
		{AddrTemperature, 0x10, "-112 °C (outside Table VII)"},
		{AddrTemperature, 0, "none"},
		{AddrPower, 30, "60 W"},
		{AddrVoltage, 192, "12 V"},
		{AddrMaxHops, 12, "Max hops=12 12"},
		{AddrChannelMask, 0x3d, "1-1 Channel X-=0 masked"},
		{AddrChannelMask, 0x3d, "5-5 Channel Z-=1 usable"},
		{AddrRouter0, RouterHopsExceeded | 1<<31, "Hops exceeded=1 raised"},
		{AddrRouter0, 1 << 31, "Unassigned=262144 0x40000"},
		{AddrRouter1, RouterQueueFull(grid.XPlus.Index()), "Queue full X+=1 raised"},
		{AddrRouter1, RouterQueueFull(grid.ZMinus.Index()), "0-0 Queue full Z-=1 raised"},
		{AddrChannel(grid.YPlus), ChannelSend, "Send errors=1 raised"},
		{AddrRDMA, RDMAMailboxFull, "Mailbox full=1 raised"},
		{AddrEngine, EngineRecovered, "Internal error survived=1 raised"},
		{AddrTemperatureThresholds, 0xe4d08a00, "Alarm above=228 100 °C"},
	} {
		if text := describe(t, tc.addr, tc.v); !strings.Contains(text, tc.want) {
			t.Errorf("%s 0x%08x: no %q in\n%s", tc.addr, tc.v, tc.want, text)
		}
	}
}

func describe(t *testing.T, a Addr, v uint32) string {
	t.Helper()
	_, fields, err := Describe(a, v)
	if err != nil {
		t.Errorf("describe %s 0x%08x: %v", a, v, err)
	}
	var b strings.Builder
	for _, f := range fields {
		writeField(&b, f)
	}
	return b.String()
}

func TestDescribeRefuses(t *testing.T) {
	for _, tc := range []struct {
		addr Addr
		v    uint32
		want []string
	}{
		{0x0ec1, 0, []string{"0x00000ec1", "no such address", "0x00000ec0"}},
		{AddrDNPWatchdog, 0x180, []string{"0x00000ec0", "DNP core", "7-8", "3 (11)", "0x00000180", "1 sick"}},
		{AddrDNPWatchdog, 0x600, []string{`"Power"`, "1 warning or 2 alarm"}},
		{AddrDNPWatchdog, 0x88000180, []string{"bits 27, 31 outside the mask", "0x07ffffff", "DNP core"}},
		{AddrHostWatchdog, 0x200, []string{"0x00000ec4", "bits 9 outside", "0x000001ff"}},
		{AddrEngine, 0x1000, []string{"0x000000c0", "0x00000fff"}},
		{AddrPowerThresholds, 0x01020304, []string{"0x00000f04", "WarnLow is code 3", "at least AlarmLow, which is 4"}},
	} {
		_, fields, err := Describe(tc.addr, tc.v)
		if err == nil {
			t.Errorf("%s 0x%08x: no error", tc.addr, tc.v)
			continue
		}
		for _, w := range tc.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s 0x%08x: error %q does not say %q", tc.addr, tc.v, err, w)
			}
		}
		if _, known := Lookup(tc.addr); known && len(fields) == 0 {
			t.Errorf("%s 0x%08x: a damaged word cannot be looked at", tc.addr, tc.v)
		}
	}
}

func writeField(b *strings.Builder, f Field) {
	b.WriteString(strings.Join([]string{itoa(f.Bits[0]) + "-" + itoa(f.Bits[1]), f.Name + "=" + itoa(int(f.Value)), f.Text}, " ") + "\n")
}

func FuzzDescribe(f *testing.F) {
	for _, r := range Registers() {
		f.Add(uint32(r.Addr), r.Mask)
	}
	f.Fuzz(func(t *testing.T, a, v uint32) {
		reg, fields, err := Describe(Addr(a), v)
		if err != nil {
			return
		}
		var back uint32
		for _, fd := range fields {
			back |= fd.Value << fd.Bits[0]
			if fd.Text == "" || fd.Text == "undefined" {
				t.Errorf("%s 0x%08x: field %+v without a meaning", reg.Addr, v, fd)
			}
		}
		if back != v {
			t.Errorf("%s: fields of 0x%08x add up to 0x%08x", reg.Addr, v, back)
		}
	})
}

// TestCelsiusFollowsTableVII checks every column of Table VII.
func TestCelsiusFollowsTableVII(t *testing.T) {
	for code, c := range map[byte]int{0xff: 127, 0xe4: 100, 0xd5: 85, 0xd0: 80, 0xb2: 50, 0x9e: 30, 0x8a: 10,
		0x80: 0, 0x76: -10, 0x6c: -20, 0x62: -30, 0x4e: -50, 0x3a: -70} {
		if got := EncodeCelsius(float64(c)); got != code {
			t.Errorf("%d °C is 0x%02x, want 0x%02x", c, got, code)
		}
		if got := DecodeCelsius(code); got != c || !CelsiusCodeValid(code) {
			t.Errorf("0x%02x is %d °C, want %d", code, got, c)
		}
	}
	for c, want := range map[float64]byte{200: 0xff, -200: 0x3a, 20.5: 128 + 21, 20.4: 128 + 20, math.Inf(1): 0xff} {
		if got := EncodeCelsius(c); got != want {
			t.Errorf("%g °C is 0x%02x, want 0x%02x", c, got, want)
		}
	}
	if EncodeCelsius(math.NaN()) != 0 || EncodeWatts(math.NaN()) != 0 || EncodeVolts(math.NaN()) != 0 || CelsiusCodeValid(0) {
		t.Error("NaN is a reading")
	}
	if EncodeWatts(60) != 30 || DecodeWatts(30) != 60 || EncodeWatts(-1) != 1 || EncodeWatts(1e9) != 255 {
		t.Error("power codes")
	}
	if EncodeVolts(12) != 192 || DecodeVolts(192) != 12 || EncodeVolts(0) != 1 || EncodeVolts(100) != 255 {
		t.Error("voltage codes")
	}
}

func TestThresholds(t *testing.T) {
	th := Thresholds{AlarmLow: 10, WarnLow: 20, WarnHigh: 80, AlarmHigh: 90}
	if th.Encode() != 0x5a50140a {
		t.Errorf("0x%08x", th.Encode())
	}
	for code, want := range map[byte]Health{9: HealthBroken, 10: HealthSick, 19: HealthSick, 20: HealthNormal, 50: HealthNormal,
		80: HealthNormal, 81: HealthSick, 90: HealthSick, 91: HealthBroken, 255: HealthBroken, 0: HealthNormal} {
		if got := th.Classify(code); got != want {
			t.Errorf("code %d is %s, want %s", code, got, want)
		}
	}
	for code := range 256 {
		if got := (Thresholds{}).Classify(byte(code)); got != HealthNormal {
			t.Errorf("without bounds, code %d is %s", code, got)
		}
	}
	if err := (Thresholds{WarnHigh: 80, AlarmHigh: 90}).Validate(); err != nil {
		t.Error(err)
	}
	for _, bad := range []Thresholds{{AlarmLow: 30, WarnLow: 20}, {WarnHigh: 90, AlarmHigh: 80}, {AlarmLow: 200, AlarmHigh: 100}} {
		if err := bad.Validate(); err == nil {
			t.Errorf("%+v accepted", bad)
		}
		if _, err := DecodeThresholds(bad.Encode()); err == nil || !strings.Contains(err.Error(), "0x") {
			t.Errorf("%+v decoded: %v", bad, err)
		}
	}
}

func TestCoreHealth(t *testing.T) {
	if CoreHealth(0, 0, 0, 0) != HealthNormal || CoreHealth(0, 0, 0, 1) != HealthSick ||
		CoreHealth(RouterMalformed, 0, 0, 0) != HealthSick || CoreHealth(0, 1<<6, 0, 0) != HealthSick ||
		CoreHealth(RouterNoRoute|RouterHopsExceeded|RouterProtocol, 0x3f, 0, 0) != HealthNormal ||
		CoreHealth(0, 0, 1, 0) != HealthSick || CoreHealth(0, 0, 0, EngineLate) != HealthNormal ||
		CoreHealth(0, 0, 0, EngineLate|EngineSensor) != HealthSick || CoreHealth(RouterMalformed, 0, 0, EngineFatal|EngineLate) != HealthBroken {
		t.Error("core health by exceptions")
	}
	if RouterKnown != 0x1fff || RDMAKnown != 7 || EngineKnown != 0xff {
		t.Error("known bits")
	}
}

// TestReadNode checks the words of a node in the form for people and programs.
func TestReadNode(t *testing.T) {
	words := ReadNode(1|1<<6|2<<25, 1|3<<3, 1<<20)
	want := []struct {
		address, value, owner, field, text string
		wrong                              bool
	}{
		{"0x00000ec0", "0x04000041", "dnp", "Link X+", "broken", false},
		{"0x00000ec4", "0x00000019", "host", "Memory", "undefined", true},
		{"0x00000ec8", "0x00100000", "dnp", "X+ service network", "broken", false},
	}
	for i, w := range want {
		got := words[i]
		at := slices.IndexFunc(got.Fields, func(f Field) bool { return f.Name == w.field })
		if got.Address != w.address || got.Value != w.value || got.Owner != w.owner || got.Fields[at].Text != w.text ||
			(got.Error != "") != w.wrong {
			t.Errorf("%+v: want %+v", got, w)
		}
	}
	reg, _ := Lookup(AddrMaxHops)
	if w := UnreadWord(reg, errors.New("torn")); w.Name != "Max hops" || w.Mask != "0x000000ff" || w.Value != "" || w.Error != "torn" {
		t.Errorf("%+v", w)
	}
}
