package sensor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source/sourcetest"
)

// restarted stores readings and reads them again, as a restart does.
func restarted(t *testing.T, readings ...Reading) []Reading {
	t.Helper()
	boot := time.Now().Add(-time.Hour)
	b, err := EncodeReadings(readings, boot)
	if err != nil {
		t.Fatal(err)
	}
	was, err := DecodeReadings(b, boot)
	if err != nil {
		t.Fatal(err)
	}
	return was
}

// life runs sources until ctx ends, after a restart with these readings, and returns the last emission. Every emission is given to each.
func life(t *testing.T, total time.Duration, was []Reading, each func(Reading), sources ...Source) (last []Reading) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), total)
	defer cancel()
	set := NewSet(sources)
	set.Resume(was)
	if err := set.Run(ctx, time.Tick(time.Second), time.Second, func(rs []Reading) {
		last = rs
		each(rs[0])
	}); err != nil {
		t.Fatal(err)
	}
	return last
}

// TestSickMemoryStaysSickOverRestart: the windows of a new process are empty. Memory that was SICK is never anything else before a whole
// window without errors.
func TestSickMemoryStaysSickOverRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		count := func(n string) {
			sourcetest.Write(t, root, "devices/system/edac/mc/mc0/ce_count", n)
			sourcetest.Write(t, root, "devices/system/edac/mc/mc0/ue_count", "0")
		}
		memory := func() Source {
			cfg := memoryTestConfig(root, time.Now)
			cfg.CorrectedWindow = time.Minute
			return newMemory(cfg)
		}
		count("0")
		first := life(t, 2500*time.Millisecond, nil, func(Reading) { count("11") }, memory())
		if first[0].State != fault.Sick || first[0].Window != time.Minute {
			t.Fatalf("%+v: want SICK, by a window of a minute", first[0])
		}
		for range 3 { // more restarts do not prolong it
			first = life(t, 19500*time.Millisecond, restarted(t, first...), func(r Reading) {
				if r.State != fault.Sick || r.Detail != "11 corrected memory errors within 1m0s: more than 10" {
					t.Errorf("after a restart: %+v: want SICK as before", r)
				}
			}, memory())
		}
		last := life(t, 2500*time.Millisecond, restarted(t, first...), func(Reading) {}, memory())
		if last[0].State != fault.Normal {
			t.Errorf("after a window without errors: %+v: want NORMAL", last[0])
		}
	})
}

// TestSignWithoutWindowEndsWithFirstReading: what shows the present needs no window, and neither does a worse state.
func TestSignWithoutWindowEndsWithFirstReading(t *testing.T) {
	for _, tc := range []struct {
		was  Reading
		now  fault.State
		want fault.State
	}{
		{Reading{State: fault.Sick}, fault.Normal, fault.Normal},
		{Reading{State: fault.Sick}, fault.Unknown, fault.Unknown},
		{Reading{State: fault.Sick, Window: time.Minute}, fault.Unknown, fault.Sick},
		{Reading{State: fault.Sick, Window: time.Minute}, fault.Failed, fault.Failed},
		{Reading{State: fault.Failed, Window: time.Minute}, fault.Sick, fault.Failed},
		{Reading{State: fault.Normal, Window: time.Minute}, fault.Sick, fault.Sick},
	} {
		synctest.Test(t, func(t *testing.T) {
			src := &fake{component: fault.ComponentMemory, read: is(tc.now)}
			tc.was.Source, tc.was.Component = src.Name(), src.Component()
			if last := life(t, time.Second/2, restarted(t, tc.was), func(Reading) {}, src); last[0].State != tc.want {
				t.Errorf("%s with a window of %v, then %s: %+v, want %s", tc.was.State, tc.was.Window, tc.now, last[0], tc.want)
			}
		})
	}
}

// TestOldStateCountsUntilFirstAnswer: a source that has not answered yet is as wrong as before. Another source of the component is not.
func TestOldStateCountsUntilFirstAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &fake{component: fault.ComponentMemory, read: func(ctx context.Context, _ int) (Reading, error) {
			<-ctx.Done()
			return Reading{}, errors.New("ended")
		}}
		was := Reading{Source: slow.Name(), Component: slow.Component(), State: fault.Failed, Detail: "gone"}
		if last := life(t, 1500*time.Millisecond, restarted(t, was), func(Reading) {}, slow); last[0].State != fault.Failed {
			t.Errorf("%+v: want FAILED", last[0])
		}
		was.Source = "another"
		if last := life(t, 1500*time.Millisecond, restarted(t, was), func(Reading) {}, slow); last[0].State != fault.Unknown {
			t.Errorf("of another source: %+v: want UNKNOWN", last[0])
		}
	})
}

// TestDeviceThatVanishedStaysFailedOverRestart: a device that was there before the restart, and no longer is, has failed.
func TestDeviceThatVanishedStaysFailedOverRestart(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Procfs, cfg.Sysfs, cfg.ServiceInterface = t.TempDir(), t.TempDir(), "eth7"
	cfg.Peripherals[0] = PeripheralConfig{Kind: PeripheralBlock, Device: "sda", Interval: Duration(time.Second)}
	cfg.Peripherals[1] = PeripheralConfig{Kind: PeripheralRDMA, Device: "mlx5_0"}
	sources, err := HostSources(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		for _, s := range sources[1:] {
			for _, state := range []fault.State{fault.Normal, fault.Failed} {
				was := Reading{Source: s.Name(), Component: s.Component(), State: state}
				if last := life(t, time.Second/2, restarted(t, was), func(Reading) {}, s); last[0].State != fault.Failed {
					t.Errorf("%s was %s: %+v: want FAILED", s.Name(), state, last[0])
				}
			}
		}
	})
}

// TestSlackSurvivesRestart: a temperature just below the limit that it passed is still SICK. So is one that cannot be read any more.
// Another input is not.
func TestSlackSurvivesRestart(t *testing.T) {
	root := t.TempDir()
	sourcetest.Write(t, root, "class/hwmon/hwmon0/name", "coretemp")
	sourcetest.Write(t, root, "class/hwmon/hwmon0/temp1_input", "79000")
	sourcetest.Write(t, root, "class/hwmon/hwmon0/temp1_max", "80000")
	for _, tc := range []struct{ file, detail, want string }{
		{"79000", "coretemp temp1 is 81 °C: above the warning limit 80", "SICK"},
		{"79000", "coretemp temp2 is 81 °C: above the warning limit 80", "NORMAL"},
		{"?", "coretemp temp1 is 81 °C: above the warning limit 80", "SICK"},
		{"?", "coretemp temp2 is 81 °C: above the warning limit 80", "UNKNOWN"},
	} {
		synctest.Test(t, func(t *testing.T) {
			sourcetest.Write(t, root, "class/hwmon/hwmon0/temp1_input", tc.file)
			src := NewHwmon(HwmonConfig{Sysfs: root, Quantity: Temperature, Bounds: NoBounds()})
			was := []Reading{{Source: src.Name(), Component: src.Component(), State: fault.Sick, Detail: tc.detail}}
			for range 2 {
				was = life(t, time.Second/2, restarted(t, was...), func(Reading) {}, src)
			}
			if was[0].State.String() != tc.want {
				t.Errorf("%s of 80 °C, before: %s: %+v: want %s", tc.file, tc.detail, was[0], tc.want)
			}
		})
	}
}

func FuzzDecodeReadings(f *testing.F) {
	b, _ := EncodeReadings([]Reading{{Source: "memory", Component: fault.ComponentMemory, State: fault.Sick, Detail: "x", Window: time.Hour}},
		time.Now())
	f.Add(b)
	f.Add([]byte(`[{"state":4,"window":-1}]`))
	f.Add([]byte(`[{"state":4,"until":9223372036854775807}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		readings, _ := DecodeReadings(b, time.Now())
		for _, r := range readings {
			if !r.State.Valid() || r.State == fault.Unknown || r.Window < 0 || r.Window > maxWindow || time.Until(r.Until) > maxWindow ||
				len(r.Detail) > fault.MaxDetail {
				t.Errorf("%+v", r)
			}
		}
	})
}
