package halfcore

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/internal/config"
)

// budgetRun gives a budget measurements once a second, of a half that uses the share of a core that load returns for
// its level. It returns the number of changes.
func budgetRun(b *Budget, now *time.Time, total *time.Duration, seconds int, load func(second int, l BudgetLevel) float64) (changes int) {
	for i := range seconds {
		*total += time.Duration(load(i, b.Level()) * float64(time.Second))
		*now = now.Add(time.Second)
		if b.Spent(*now, *total) != BudgetSame {
			changes++
		}
	}
	return changes
}

func steadily(share float64) func(int, BudgetLevel) float64 {
	return func(int, BudgetLevel) float64 { return share }
}

const testSensorPeriod = 2 * time.Second

func testBudget(percent float64) (*Budget, *time.Time, *time.Duration) {
	now, total := time.Unix(1_000_000, 0), 5*time.Second
	b := NewBudget(percent, testSensorPeriod, now)
	b.Spent(now, total)
	return &b, &now, &total
}

func TestHalfWithinItsBudgetKeepsAllWork(t *testing.T) {
	b, now, total := testBudget(10)
	l := NewLateness(config.Periods{}, *now)
	if n := budgetRun(b, now, total, 3600, steadily(0.099)); n != 0 || b.Level() != BudgetKept || ProcessorTime(&l, b) != nil {
		t.Errorf("%d changes, level %d, %v: want none", n, b.Level(), ProcessorTime(&l, b))
	}
	// A second of full use, as at a start, is within the burst.
	n := budgetRun(b, now, total, 60, func(i int, _ BudgetLevel) float64 { return map[bool]float64{true: 1, false: 0.02}[i == 0] })
	if n != 0 {
		t.Errorf("%d changes after a burst: want none", n)
	}
}

func TestHalfWithoutBudgetKeepsAllWork(t *testing.T) {
	b, now, total := testBudget(0)
	if n := budgetRun(b, now, total, 600, steadily(1)); n != 0 || b.Level() != BudgetKept {
		t.Errorf("%d changes, level %d: want none", n, b.Level())
	}
}

// TestBusyHalfGivesUpDigestsThenProbesThenSensors: each step is one level, in seconds; the return takes a hold each.
func TestBusyHalfGivesUpDigestsThenProbesThenSensors(t *testing.T) {
	b, now, total := testBudget(10)
	var levels []BudgetLevel
	for range 6 {
		budgetRun(b, now, total, 1, steadily(0.8))
		levels = append(levels, b.Level())
	}
	want := []BudgetLevel{BudgetKept, BudgetDigests, BudgetProbes, BudgetSensors, BudgetSensors, BudgetSensors}
	for i := range want {
		if levels[i] != want[i] {
			t.Fatalf("levels %d at 80 %% of a core: want %d", levels, want)
		}
	}
	l := NewLateness(config.Periods{}, *now)
	if p := ProcessorTime(&l, b); p.GetBudgetLevel() != 3 || p.GetUsedPermille() < 700 || p.GetUsedPermille() > 800 {
		t.Errorf("%v: want level 3 and some 800 thousandths", p)
	}
	if words := b.String(); !strings.Contains(words, "level 3, digests, probes and sensor readings are rarer") ||
		!strings.Contains(words, "its budget is 10 %") {
		t.Errorf("words %q", words)
	}
	if n := budgetRun(b, now, total, 29, steadily(0.02)); n != 2 || b.Level() != BudgetDigests {
		t.Errorf("after 29 s of little use: %d changes, level %d: want 2 and level 1", n, b.Level())
	}
	if budgetRun(b, now, total, 10, steadily(0.02)); b.Level() != BudgetKept {
		t.Errorf("level %d after 39 s of little use: want 0", b.Level())
	}
	if p := ProcessorTime(&l, b); p == nil || p.GetBudgetLevel() != 0 || p.GetUsedPermille() != 0 {
		t.Errorf("%v: want a status without a level, so that the old one is withdrawn", p)
	}
}

func TestWorkOfEachLevel(t *testing.T) {
	p, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	rarer := p.DigestPeriod*4/3 - 2*p.TWrite
	for l, want := range map[BudgetLevel]struct {
		digests         time.Duration
		probes, sensors int
	}{
		BudgetKept:    {p.DigestPeriod, 1, 1},
		BudgetDigests: {rarer, 1, 1},
		BudgetProbes:  {rarer, 4, 1},
		BudgetSensors: {rarer, 4, 4},
	} {
		if d, pr, s := l.Digests(p), l.Probes(), l.Sensors(); d != want.digests || pr != want.probes || s != want.sensors {
			t.Errorf("level %d: digests every %v, probes %d and sensors %d times rarer: want %v", l, d, pr, s, want)
		}
	}
}

// TestRarerDigestsAreNotMissed: with each preset, supervisors get a rarer digest before one and a half periods have
// passed. With any number of digestMisses, as many digests may be lost as at level 0 before a half's statements expire.
// A digest rides on the write period.
func TestRarerDigestsAreNotMissed(t *testing.T) {
	for _, name := range config.PresetNames() {
		p, err := config.Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		longest := BudgetSensors.Digests(p) + p.TWrite
		if longest <= p.DigestPeriod*9/8 || longest >= p.DigestPeriod*3/2 {
			t.Errorf("preset %s: up to %v between digests, of a period of %v", name, longest, p.DigestPeriod)
		}
		for p.DigestMisses = 2; p.DigestMisses <= 64; p.DigestMisses++ {
			// At level 0, digests keep to multiples of the write period.
			window, lost := time.Duration(p.DigestMisses)*p.DigestPeriod, p.DigestMisses-2
			d := BudgetSensors.Digests(p)
			if d > p.DigestPeriod {
				d += p.TWrite
			}
			if silent := time.Duration(lost+1) * d; silent >= window {
				t.Errorf("preset %s, digestMisses %d: %v without %d digests, and statements expire after %v", name, p.DigestMisses, silent,
					lost, window)
			}
			if p.DigestMisses <= 3 && d != p.DigestPeriod {
				t.Errorf("preset %s, digestMisses %d: digests every %v: want %v", name, p.DigestMisses, d, p.DigestPeriod)
			}
		}
	}
}

// TestLevelOscillatesRarely: a half whose use depends on its level, at random, changes its level at most twice in a
// hold, which grows to a minute. Once the load is gone, the level returns to 0 for good.
func TestLevelOscillatesRarely(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		percent := rapid.Float64Range(0.1, 100).Draw(t, "budget")
		b, now, total := testBudget(percent)
		var at [BudgetSensors + 1]float64 // use at each level, as a share of the budget
		for l := range at {
			at[l] = rapid.Float64Range(0, 4).Draw(t, "use")
		}
		noise := rapid.Float64Range(0, 0.5).Draw(t, "noise")
		const hour = 3600
		n := budgetRun(b, now, total, hour, func(i int, l BudgetLevel) float64 {
			return percent / 100 * (at[l] + noise*float64(i%3))
		})
		// Each fall takes a hold, and each rise but the first ones follows a fall.
		holds := 3*4 + hour/int(budgetMaxHold/time.Second)
		if most := 2*holds + int(BudgetSensors); n > most {
			t.Fatalf("%d changes in an hour: want at most %d", n, most)
		}
		idle := func(int, BudgetLevel) float64 { return percent / 100 * 0.5 }
		budgetRun(b, now, total, int(4*budgetMaxHold/time.Second)+10, idle)
		if b.Level() != BudgetKept {
			t.Fatalf("level %d after four minutes of little use: want 0", b.Level())
		}
		if n := budgetRun(b, now, total, hour, idle); n != 0 {
			t.Fatalf("%d changes in an hour of little use: want none", n)
		}
	})
}

// TestChangedLevelGivesSensorsTheirOldPeriod: sensors are late after four periods, reported once for each silence. When
// the level changes their period, their silence counts only after one more of the old periods. Time in which the half
// did not run is excluded.
func TestChangedLevelGivesSensorsTheirOldPeriod(t *testing.T) {
	b, now, total := testBudget(10)
	late := func(after time.Duration) bool {
		_, is := b.SensorsLate(now.Add(after))
		return is
	}
	if late(4*testSensorPeriod - 1) {
		t.Error("late before four periods")
	}
	if !late(4*testSensorPeriod) || late(5*testSensorPeriod) {
		t.Error("want late after four periods, and reported once")
	}
	budgetRun(b, now, total, 4, steadily(0.8))
	b.SensorsAnswered(*now) // the answer that was under way when the level changed
	if l := b.Level(); l != BudgetSensors {
		t.Fatalf("level %d: want %d", l, BudgetSensors)
	}
	if late(16 * testSensorPeriod) {
		t.Error("late before an old period and four new ones have passed")
	}
	b.SensorsOweNothingFor(testSensorPeriod)
	if late(17*testSensorPeriod) || !late(18*testSensorPeriod) {
		t.Error("want late after an old period, four new ones, and the half's own absence")
	}
}

// TestRareAndWildMeasurementsChangeNothing: measurements in quick succession, after a long absence, and a clock of the
// process that runs backwards.
func TestRareAndWildMeasurementsChangeNothing(t *testing.T) {
	b, now, total := testBudget(10)
	for range 1000 { // 100 % of a core, looked at every millisecond for a second
		*now, *total = now.Add(time.Millisecond), *total+time.Millisecond
		b.Spent(*now, *total)
	}
	if b.Level() != BudgetKept {
		t.Errorf("level %d after one second: want 0", b.Level())
	}
	*now, *total = now.Add(time.Hour), *total+time.Minute
	if b.Spent(*now, *total); b.Level() != BudgetKept {
		t.Errorf("level %d after an hour at 1.7 %%: want 0", b.Level())
	}
	*now = now.Add(time.Second)
	if b.Spent(*now, 0); b.Level() != BudgetKept {
		t.Errorf("level %d after a clock that ran backwards: want 0", b.Level())
	}
}
