package servicenet

import (
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// fullHealth is as much as a node says that has all modules and long words.
func fullHealth() Health {
	h := sampleHealth()
	for _, half := range [...]*lofamov1.HalfHealth{h.Host, h.DNP} {
		half.Tests = nil
		half.Recovery.Cold, half.Recovery.Cause = "the cell of the outbox was damaged in both copies", "killed by signal 11 (segmentation fault)"
		for n := range uint32(13) {
			half.Tests = append(half.Tests, &lofamov1.SelfTest{
				Number: 1 + n, State: lofamov1.TestState_PASSED, AgeMs: 4000, LatencyUs: 2000, LearnedUs: 2100, Tests: 1 << 30, Lost: 200,
			})
		}
	}
	h.DNP.Tests[3].State = lofamov1.TestState_FAILING
	return h
}

// usualHealth is the health of a node that uses all its modules, and whose halves were both restarted.
func usualHealth() Health {
	h := sampleHealth()
	test := func(numbers ...uint32) (out []*lofamov1.SelfTest) {
		for _, n := range numbers {
			out = append(out, &lofamov1.SelfTest{Number: n, State: lofamov1.TestState_PASSED, AgeMs: 2000, LatencyUs: 900, LearnedUs: 1000,
				Tests: 40_000})
		}
		return out
	}
	h.Host.Tests, h.DNP.Tests = test(8, 9, 10, 11, 12, 16), test(1, 2, 3, 4, 5, 6, 7, 10, 11)
	return h
}

// With any faults of a node, a digest with status and health fits its datagram; the most significant parts are
// omitted last.
func TestHealthFitsDatagram(t *testing.T) {
	signer := newSignerSize(RoleNode, "n0-0-1/host", usualCertificate)
	for _, tt := range []struct {
		name  string
		path  fault.Path
		give  Health
		rails int
		say   func(Health) bool
	}{
		{"a node in order", fault.PathDirect, sampleHealth(), 3, func(h Health) bool { return proto.Equal(h.DNP, sampleHealth().DNP) }},
		{"a node that uses everything", fault.PathDirect, usualHealth(), 3, func(h Health) bool {
			return proto.Equal(h.Host, usualHealth().Host) && proto.Equal(h.DNP, usualHealth().DNP)
		}},
		{"nothing to say", fault.PathDirect, Health{}, 3, Health.empty},
		{"one half", fault.PathDirect, Health{DNP: sampleHealth().DNP}, 3,
			func(h Health) bool { return h.Host == nil && len(h.DNP.GetTests()) == 2 }},
		{"every module", fault.PathDirect, fullHealth(), 3, func(h Health) bool {
			return len(h.Host.GetTests()) == 13 && h.Host.GetTests()[0].GetTests() == 0 && h.Host.GetCut() && h.Host.GetRecovery().GetCause() != ""
		}},
		{"every module and rail", fault.PathDirect, fullHealth(), MaxRails,
			func(h Health) bool { return h.DNP.GetRecovery().GetRestarts() == 1 && h.DNP.GetCut() }},
		{"by the torus", fault.PathTorus, sampleHealth(), 0, func(h Health) bool {
			return h.Host.GetRecovery().GetRestarts() == 7 && h.DNP.GetRecovery().GetState() == lofamov1.RecoveryState_RESTARTING && h.DNP.GetCut()
		}},
	} {
		r := splitReport(nil, healthyDigest("n0-0-1"), MaxReportSize)[0]
		if tt.path == fault.PathTorus {
			r.Observations = r.Observations[:6] // all would leave no room
		}
		status := sampleStatus()
		status.Rails = nil
		for range tt.rails {
			status.Rails = append(status.Rails, &lofamov1.RailStatus{Name: "direct/eth0", Sent: 1 << 20, Answered: 1 << 20,
				RttNs: uint64(time.Millisecond)})
		}
		if tt.path == fault.PathTorus {
			status = nil
		}
		fits := FitHealth(sendOf(tt.path, r), status, tt.give)
		if !tt.say(fits) {
			t.Errorf("%s: %v", tt.name, fits)
		}
		b, err := SealReports([]fault.Report{r}, status, signer, SealOptions{Health: fits})
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		a, err := Unwrap(b, fault.PathDirect, fakeVerifier{})
		if err != nil || !proto.Equal(a.Health.Of(fault.HalfHost), fits.Host) || !proto.Equal(a.Health.Of(fault.HalfDNP), fits.DNP) {
			t.Errorf("%s: read %v, %v; want %v", tt.name, a.Health, err, fits)
		}
	}
	if h := fullHealth(); len(h.Host.GetTests()) != 13 || h.Host.GetCut() {
		t.Error("what was given was changed")
	}
}

// TestHealthLeavesRoomForDenyListVersion: a half adds the version to its status after the health was fitted.
func TestHealthLeavesRoomForDenyListVersion(t *testing.T) {
	r, limit, cut := splitReport(nil, healthyDigest("n0-0-1"), MaxReportSize)[0], usualRoom.by(fault.PathDirect), 0
	for n := range 900 {
		status := &lofamov1.DeliveryStatus{ViewRevision: math.MaxUint64, Spool: strings.Repeat("s", n)}
		h := FitHealth(sendOf(fault.PathDirect, r), status, fullHealth())
		if h.Host.GetCut() {
			cut++
		}
		status.Denied = math.MaxUint64
		if size := reportSize(r) + statusSize(status) + healthSize(h); !h.empty() && size > limit {
			t.Fatalf("with %d bytes of text: %d bytes in all, want at most %d", n, size, limit)
		}
	}
	if cut == 0 {
		t.Error("the health always had room")
	}
}

// Each step of cutting leaves less, and the last ones still say that a half was restarted.
func TestCutHealthKeepsRestart(t *testing.T) {
	before := healthSize(fullHealth()) + 1
	for cut := range nothing {
		h := Health{cutHealth(fullHealth().Host, cut), cutHealth(fullHealth().DNP, cut)}
		if n := healthSize(h); n > before || n == before && cut != noDetails { // it states no boot
			t.Errorf("step %d leaves %d bytes of %d", cut, n, before)
		} else {
			before = n
		}
		if h.Host.GetRecovery().GetRestarts() != 7 || h.DNP.GetRecovery().GetState() != lofamov1.RecoveryState_RESTARTING {
			t.Errorf("step %d: %v", cut, h)
		}
		if cut == unwell && (len(h.Host.GetTests()) != 0 || len(h.DNP.GetTests()) != 1) {
			t.Errorf("what is not well: %v", h)
		}
	}
	starved := sampleHealth().Host
	starved.Processor = &lofamov1.ProcessorTime{Starved: true, LongestMs: 119, SharePermille: 250, BudgetLevel: 2}
	for cut := range nothing {
		if p := cutHealth(starved, cut).GetProcessor(); !p.GetStarved() || p.GetLongestMs() != 119 || p.GetBudgetLevel() != 2 {
			t.Errorf("step %d of a starved half leaves %v", cut, p)
		}
	}
	ordinary := sampleHealth().Host
	ordinary.Processor = &lofamov1.ProcessorTime{NotRealtime: true}
	for cut := range nothing {
		if p := cutHealth(ordinary, cut).GetProcessor(); p.GetNotRealtime() != (cut < justCounts) || cut == justCounts && p != nil {
			t.Errorf("step %d of a half without real-time scheduling leaves %v", cut, p)
		}
	}
	given := Health{Host: &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_GIVEN_UP, Restarts: 5,
		Cause: "ended by signal 9", Reason: "budget"}}}
	if h := cutHealth(given.Host, onlyCauses); h.GetRecovery().GetCause() != "ended by signal 9" || h.GetRecovery().GetReason() != "" {
		t.Errorf("of a half that was given up: %v", h)
	}
	booted := &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{Cause: "ended by signal 9"},
		LastBoot: &lofamov1.LastBoot{End: lofamov1.BootEnd_BOOT_PANIC, Boot: 7, Detail: "Kernel panic - not syncing: NMI"}}
	for cut := range nothing { // the kernel's line stays longer than the texts of recoveries
		h := cutHealth(booted, cut)
		if got, want := h.GetLastBoot().GetDetail() != "", cut <= noTexts; got != want {
			t.Errorf("step %d after a boot leaves the kernel's line: %t, want %t", cut, got, want)
		}
		if got, want := h.GetLastBoot() != nil, cut <= noDetails; got != want {
			t.Errorf("step %d after a boot leaves its end: %t, want %t", cut, got, want)
		}
		if got, want := h.GetRecovery().GetCause() != "", cut < noTexts; cut != onlyCauses && got != want {
			t.Errorf("step %d after a boot leaves the cause: %t, want %t", cut, got, want)
		}
	}
	if before > 40 {
		t.Errorf("the least takes %d bytes: want at most 40", before)
	}
}

// Values that change in every digest must not make it a new one; values that people should know at once must.
func TestHealthWordsIgnoreCounters(t *testing.T) {
	want := sampleHealth().Words()
	if want == 0 || (Health{}).Words() != 0 {
		t.Fatalf("words %d, of nothing %d", want, Health{}.Words())
	}
	for name, change := range map[string]func(h *lofamov1.HalfHealth){
		"ages": func(h *lofamov1.HalfHealth) { h.AgeNs++; h.Recovery.AgeNs++; h.Tests[0].AgeMs++; h.Recovery.UntilMs-- },
		"counts": func(h *lofamov1.HalfHealth) {
			h.Tests[1].Tests++
			h.Tests[1].LatencyUs++
			h.Tests[1].LearnedUs++
			h.Recovery.InWindow++
		},
	} {
		h := sampleHealth()
		if change(h.DNP); h.Words() != want {
			t.Errorf("%s change the words", name)
		}
	}
	for name, change := range map[string]func(h *lofamov1.HalfHealth){
		"why":              func(h *lofamov1.HalfHealth) { h.Recovery.Reason = "spent" },
		"proving":          func(h *lofamov1.HalfHealth) { h.Tests[0].Proving = true },
		"a restart":        func(h *lofamov1.HalfHealth) { h.Recovery.Restarts++ },
		"a state":          func(h *lofamov1.HalfHealth) { h.Recovery.State = lofamov1.RecoveryState_RUNNING },
		"a cause":          func(h *lofamov1.HalfHealth) { h.Recovery.Cause = "stopped" },
		"serving":          func(h *lofamov1.HalfHealth) { h.Recovery.ServingUs = 50_000 },
		"a test's state":   func(h *lofamov1.HalfHealth) { h.Tests[0].State = lofamov1.TestState_PASSED },
		"the first loss":   func(h *lofamov1.HalfHealth) { h.Tests[0].Lost = 1 },
		"a module":         func(h *lofamov1.HalfHealth) { h.Tests = h.Tests[:1] },
		"what is left out": func(h *lofamov1.HalfHealth) { h.Cut = false },
		"starvation":       func(h *lofamov1.HalfHealth) { h.Processor = &lofamov1.ProcessorTime{Starved: true} },
		"no real-time":     func(h *lofamov1.HalfHealth) { h.Processor = &lofamov1.ProcessorTime{NotRealtime: true} },
		"a budget level":   func(h *lofamov1.HalfHealth) { h.Processor = &lofamov1.ProcessorTime{BudgetLevel: 1} },
		"no recovery":      func(h *lofamov1.HalfHealth) { h.Recovery = nil },
	} {
		h := sampleHealth()
		if change(h.DNP); h.Words() == want {
			t.Errorf("%s does not change the words", name)
		}
	}
	lossy := sampleHealth()
	lossy.DNP.Tests[0].Lost = 100
	more := sampleHealth()
	if more.DNP.Tests[0].Lost = 127; lossy.Words() != more.Words() {
		t.Error("every loss of a lossy link makes a new digest")
	}
	if (Health{Host: sampleHealth().Host}).Words() == (Health{DNP: sampleHealth().Host}).Words() {
		t.Error("the halves are not told apart")
	}
}

// A later version's states are unknown here; its other fields count.
func TestHealthOfLaterVersion(t *testing.T) {
	m := healthMessage()
	m.GetReports().Dnp.Recovery.State, m.GetReports().Dnp.Recovery.Resumption, m.GetReports().Dnp.Tests[1].State = 9, 9, 9
	m.GetReports().Dnp.Tests[1].Number = 99
	a, err := Unwrap(rawSeal(marshal(t, m), nodeSigner), fault.PathDirect, fakeVerifier{})
	if err != nil {
		t.Fatal(err)
	}
	d := a.Health.DNP
	if r := d.GetRecovery(); r.GetState() != 0 || r.GetResumption() != 0 || r.GetRestarts() != 1 || d.GetTests()[1].GetState() != 0 ||
		d.GetTests()[1].GetNumber() != 99 {
		t.Errorf("%v", d)
	}
}

func TestModuleNames(t *testing.T) {
	rails := &lofamov1.DeliveryStatus{Rails: []*lofamov1.RailStatus{{Name: "direct/eth0"}, {Name: "gossip"}}}
	if a, b := ModuleName(16, rails), ModuleName(17, rails); a != "direct/eth0" || b != "direct/1" {
		t.Errorf("the direct rails are %q and %q", a, b)
	}
	for number, want := range map[uint32]string{1: "link/X+", 6: "link/Z-", 7: "relay", 8: "gossip", 9: "report-path", 10: "mailbox",
		11: "register-path", 16: "direct/0", 23: "direct/7", 24: "module/24", 0: "module/0"} {
		if got := ModuleName(number, nil); got != want {
			t.Errorf("module %d is %q, want %q", number, got, want)
		}
	}
}

// BenchmarkHealth compares the cost of a digest with the halves' health to one without.
func BenchmarkHealth(b *testing.B) {
	v := newSessions()
	rs := splitReport(nil, healthyDigest("n0-0-1"), MaxReportSize)[:1]
	for name, h := range map[string]Health{"without": {}, "usual": usualHealth()} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				e, err := SealReports(rs, sampleStatus(), nil, SealOptions{Session: testKey(1), Health: h})
				if err != nil {
					b.Fatal(err)
				}
				a, err := Unwrap(e, fault.PathDirect, freeVerifier{v})
				if err != nil {
					b.Fatal(err)
				}
				a.Health.Words()
			}
		})
	}
}

// TestLastWordsFitReportOfDeath: a DNP half's report of its host's death goes by the torus, with room for a kernel's line. A line that has
// no room is left out, with the whole message about the half.
func TestLastWordsFitReportOfDeath(t *testing.T) {
	signer := newSignerSize(RoleNode, "n0-0-1/dnp", usualCertificate)
	report := func(observations int) fault.Report {
		r := fault.Report{ID: fault.ReportID{Origin: fault.Origin{Node: "n0-0-1", Half: fault.HalfDNP}, Epoch: 7, Seq: 9}, Uptime: time.Hour,
			Registers: fault.Registers{DNPWatchdog: 1, HostWatchdog: 1, RemoteFaultDescriptor: 1}, Platform: fault.PlatformDPU}
		all := []fault.Observation{
			{Component: fault.ComponentHost, State: fault.Failed, Kind: fault.KindWatchdog, Age: time.Second, Detail: "watchdog word not valid"},
			{Component: fault.ComponentBus, State: fault.Failed, Kind: fault.KindSilence, Age: time.Second, Detail: "window silent"},
		}
		for i := range observations {
			o := all[i%len(all)]
			o.Node = "n0-0-1"
			r.Observations = append(r.Observations, o)
		}
		return r
	}
	line := "Kernel panic - not syncing: " + strings.Repeat("x", 120-28)
	words := []*lofamov1.LastWords{{Node: "n0-0-1", From: "fd00:1234:5678:9abc:def0:1234:5678:9abc", End: lofamov1.BootEnd_BOOT_PANIC,
		Line: line, Context: []string{"a", "b"}, Serial: 1 << 31, AgeMs: 99}}
	for _, tt := range []struct {
		name         string
		observations int
		want         string
	}{
		{"the report of a death over a silent window", 2, line},
		{"a report without room", 6, ""},
	} {
		r := report(tt.observations)
		fits := FitLastWords(sendOf(fault.PathTorus, r), words)
		b, err := SealReports([]fault.Report{r}, nil, signer, SealOptions{Health: fits})
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		a, err := Unwrap(b, fault.PathDirect, fakeVerifier{})
		if err != nil || a.Health.Host != nil || !proto.Equal(a.Health.DNP, fits.DNP) {
			t.Fatalf("%s: read %v, %v; want %v", tt.name, a.Health, err, fits)
		}
		if tt.want == "" {
			if a.Health.DNP != nil {
				t.Errorf("%s: %v", tt.name, a.Health.DNP)
			}
			continue
		}
		if w := a.Health.DNP.GetLastWords(); len(w) != 1 || w[0].GetLine() != line || w[0].GetSerial() != 1<<31 || w[0].GetAgeMs() != 99 {
			t.Errorf("%s: %v", tt.name, w)
		}
		if n := proto.Size(EncodeReports([]fault.Report{r}, nil)) + healthSize(fits); n > usualRoom.by(fault.PathTorus) {
			t.Errorf("%s: %d bytes: want at most %d", tt.name, n, usualRoom.by(fault.PathTorus))
		}
	}
	if h := FitLastWords(sendOf(fault.PathDirect, report(1)), nil); !h.empty() {
		t.Errorf("without words: %v", h)
	}
}

// sendOf returns a datagram of one report.
func sendOf(path fault.Path, r fault.Report) *Send {
	return &Send{Path: path, Reports: []fault.Report{r}, Room: usualRoom.by(path)}
}
