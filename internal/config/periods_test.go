package config

import (
	"math"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

func TestPresetsHaveDocumentedBounds(t *testing.T) {
	for _, tc := range []struct {
		name                    string
		half, dpu, node, single time.Duration
		pause                   time.Duration
	}{
		{PresetDefault, 210 * ms, 290 * ms, 175 * ms, 415 * ms, 65 * ms},
		{PresetFast, 96 * ms, 143 * ms, 79 * ms, 164 * ms, 48 * ms},
		{PresetRelaxed, 2240 * ms, 2580 * ms, 1540 * ms, 3040 * ms, 290 * ms},
	} {
		p, err := Preset(tc.name)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if p.HalfBound() != tc.half || p.NodeBound() != tc.node || p.SingleBound() != tc.single {
			t.Errorf("%s: bounds %v, %v, %v: want %v, %v, %v", tc.name, p.HalfBound(), p.NodeBound(), p.SingleBound(), tc.half, tc.node, tc.single)
		}
		if p.DPUHalfBound() != tc.dpu {
			t.Errorf("%s: DPUHalfBound %v: want %v", tc.name, p.DPUHalfBound(), tc.dpu)
		}
		if p.PauseSettle() != tc.pause {
			t.Errorf("%s: PauseSettle %v: want %v", tc.name, p.PauseSettle(), tc.pause)
		}
		if p.TRead%p.TWrite != 0 {
			t.Logf("%s: TRead %v is no multiple of TWrite %v: more wake-ups", tc.name, p.TRead, p.TWrite)
		}
	}
	if len(PresetNames()) != 3 {
		t.Error(PresetNames())
	}
	if _, err := Preset("swift"); err == nil || !strings.Contains(err.Error(), `preset: given "swift": want one of default, fast, relaxed`) {
		t.Errorf("%v", err)
	}
}

func TestPeriodsValidationNamesField(t *testing.T) {
	for _, tc := range []struct {
		change func(*Periods)
		names  string
	}{
		{func(p *Periods) { p.TRead = p.TWrite }, "periods.tWrite: given 25ms: want less than periods.tRead (25ms)"},
		{func(p *Periods) { p.TWrite = 60 * ms }, "periods.tWrite: given 60ms: want less than periods.tRead (50ms)"},
		{func(p *Periods) { p.TWrite = 0 }, "periods.tWrite: given 0s: want 1ms to 10s"},
		{func(p *Periods) { p.TRead = time.Hour }, "periods.tRead: given 1h: want 2ms to 1m"},
		{func(p *Periods) { p.ReadMisses = -1 }, "periods.readMisses: given -1: want 0 to 16"},
		{func(p *Periods) { p.LinkPeriod = 0 }, "periods.linkPeriod: given 0s"},
		{func(p *Periods) { p.LinkMisses = 0 }, "periods.linkMisses: given 0: want 1 to 64"},
		{func(p *Periods) { p.SensorPeriod = ms }, "periods.sensorPeriod: given 1ms: want 10ms to 10m"},
		{func(p *Periods) { p.DigestPeriod = ms }, "periods.digestPeriod: given 1ms: want 50ms to 10m"},
		{func(p *Periods) { p.DigestMisses = 65 }, "periods.digestMisses: given 65"},
		{func(p *Periods) { p.ChallengeNode = -1 }, "periods.challengeNode: given -1ns"},
		{func(p *Periods) { p.ChallengeHalf = 0 }, "periods.challengeHalf: given 0s"},
		{func(p *Periods) { p.ChallengeSingle = 50 * ms }, "periods.challengeSingle: given 50ms: want at least periods.challengeNode (60ms)"},
		{func(p *Periods) { p.AckTimeout = time.Minute }, "periods.ackTimeout: given 1m"},
		{func(p *Periods) { p.LinkSickRatio = 1 }, "periods.linkSickRatio: given 1: want above 0 and below 1"},
		{func(p *Periods) { p.LinkSickRatio = math.NaN() }, "periods.linkSickRatio: given NaN"},
		{func(p *Periods) { p.LinkClearRatio = 0.05 },
			"periods.linkClearRatio: given 0.05: want 0 or more and below periods.linkSickRatio (0.05)"},
		{func(p *Periods) { p.LinkWindow = 9 }, "periods.linkWindow: given 9: want 10 to 100000"},
		{func(p *Periods) { p.LinkMinErrors = 101 }, "periods.linkMinErrors: given 101: want 1 to 100"},
		{func(p *Periods) { p.LinkHoldOff = -1 }, "periods.linkHoldOff: given -1ns"},
	} {
		p, err := Preset(PresetDefault)
		if err != nil {
			t.Fatal(err)
		}
		tc.change(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), tc.names) {
			t.Errorf("error %v: want one that has %q", err, tc.names)
		}
	}
	// All at once.
	err := Periods{}.Validate()
	if err == nil {
		t.Fatal("zero periods are valid")
	}
	for _, f := range []string{"tWrite", "tRead", "linkPeriod", "linkMisses", "sensorPeriod", "digestPeriod", "digestMisses",
		"challengeNode", "challengeHalf", "challengeSingle", "ackTimeout", "linkSickRatio", "linkClearRatio", "linkWindow", "linkMinErrors"} {
		if !strings.Contains(err.Error(), "periods."+f+": ") {
			t.Errorf("%s is not named in %v", f, err)
		}
	}
}

func TestShortTimes(t *testing.T) {
	for give, want := range map[string]string{
		"given 1h0m0s: want 2ms to 1m0s": "given 1h: want 2ms to 1m", "168h0m0s": "168h", "1h30m0s": "1h30m", "10m0s": "10m", "10s": "10s",
		"1m30s": "1m30s", "0s": "0s", "500ms": "500ms", "alpha0s": "alpha0s", `{"a":"5m0s"}`: `{"a":"5m"}`,
	} {
		if got := ShortTimes(give); got != want {
			t.Errorf("%q: %q, want %q", give, got, want)
		}
	}
}
