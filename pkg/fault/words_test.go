package fault

import (
	"testing"
	"time"
)

func aDigest() Report {
	return Report{
		ID:     ReportID{Origin: Origin{Node: "n0-0-0", Half: HalfHost}, Epoch: 3, Seq: 7},
		Digest: true, Uptime: time.Hour, Registers: Registers{DNPWatchdog: 1, HostWatchdog: 2, RemoteFaultDescriptor: 3},
		Observations: []Observation{
			{Node: "n0-0-0", Component: ComponentHost, State: Normal, Kind: KindSelf, Age: time.Second},
			{Node: "n1-0-0", Component: ComponentHost, State: Failed, Kind: KindDescriptor, Detail: "no cause known"},
		},
	}
}

// TestWordsDependOnContentAlone checks that everything counts except the sequence, the ages and the uptime, and that the number is the same
// in every process, also in later versions.
func TestWordsDependOnContentAlone(t *testing.T) {
	want := Words(aDigest())
	if want != 0x6231b9702230129a {
		t.Errorf("Words = %#x: replicas of two versions would not understand one another", want)
	}
	for name, change := range map[string]func(*Report){
		"sequence": func(r *Report) { r.ID.Seq++ },
		"uptime":   func(r *Report) { r.Uptime++ },
		"platform": func(r *Report) { r.Platform = PlatformSharedKernel },
		"age":      func(r *Report) { r.Observations[0].Age++ },
	} {
		r := aDigest()
		if change(&r); Words(r) != want {
			t.Errorf("another %s makes other words", name)
		}
	}
	seen := map[uint64]string{want: "the digest itself"}
	for name, change := range map[string]func(*Report){
		"node":                func(r *Report) { r.ID.Origin.Node = "n0-0-1" },
		"half":                func(r *Report) { r.ID.Origin.Half = HalfDNP },
		"epoch":               func(r *Report) { r.ID.Epoch++ },
		"no digest":           func(r *Report) { r.Digest = false },
		"partial":             func(r *Report) { r.Partial = true },
		"DNP word":            func(r *Report) { r.Registers.DNPWatchdog++ },
		"host word":           func(r *Report) { r.Registers.HostWatchdog++ },
		"descriptor":          func(r *Report) { r.Registers.RemoteFaultDescriptor++ },
		"one statement less":  func(r *Report) { r.Observations = r.Observations[:1] },
		"about whom":          func(r *Report) { r.Observations[1].Node = "n2-0-0" },
		"component":           func(r *Report) { r.Observations[1].Component = ComponentMemory },
		"state":               func(r *Report) { r.Observations[1].State = Sick },
		"ended":               func(r *Report) { r.Observations[0].Ended = true },
		"kind":                func(r *Report) { r.Observations[0].Kind = KindWatchdog },
		"readings":            func(r *Report) { r.Readings = []Reading{{}} },
		"later readings":      func(r *Report) { r.Readings, r.ID.Seq = []Reading{{}}, 8 },
		"detail":              func(r *Report) { r.Observations[1].Detail = "memory" },
		"order of statements": func(r *Report) { r.Observations[0], r.Observations[1] = r.Observations[1], r.Observations[0] },
	} {
		r := aDigest()
		change(&r)
		w := Words(r)
		if other, dup := seen[w]; dup {
			t.Errorf("%s: the same number as %s", name, other)
		}
		seen[w] = name
	}
}

// TestWordsIsFNV checks the hash against published values of 64-bit FNV-1a.
func TestWordsIsFNV(t *testing.T) {
	for text, want := range map[string]fnv{"": 0xcbf29ce484222325, "a": 0xaf63dc4c8601ec8c, "foobar": 0x85944171f73967e8} {
		h := fnvOffset
		h.bytes([]byte(text)...)
		if h != want {
			t.Errorf("FNV-1a of %q = %#x, want %#x", text, uint64(h), uint64(want))
		}
	}
}
