package source_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
)

// Entropy says of a peripheral whether the kernel's random numbers have begun. It reads one file below Procfs.
type Entropy struct {
	Procfs string
	About  fault.Component
	Low    uint64 // bits below which it is SICK
}

// Name implements source.Source.
func (e Entropy) Name() string { return "entropy" }

// Component implements source.Source.
func (e Entropy) Component() fault.Component { return e.About }

// Read implements source.Source.
func (e Entropy) Read(context.Context) (source.Reading, error) {
	j := source.NewJudge(e.About, e.Name())
	bits, err := source.Root(e.Procfs).Uint("sys/kernel/random/entropy_avail")
	switch {
	case source.Missing(err): // this machine has none: report nothing
	case err != nil:
		j.Fail(err)
	case bits < e.Low:
		j.Say(fault.Sick, float64(bits), "", "%d bits of entropy, want %d", bits, e.Low)
	default:
		j.Say(fault.Normal, float64(bits), "", "%d bits of entropy", bits)
	}
	return j.Reading("the kernel says nothing of entropy")
}

// Example shows a custom source: its reading, and its behaviour if the file is absent or unreadable.
func Example() {
	procfs, err := os.MkdirTemp("", "proc")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(procfs) }()
	var s source.Source = Entropy{Procfs: procfs, About: fault.ComponentPeripheral1, Low: 128}
	read := func() {
		r, err := s.Read(context.Background())
		if err != nil {
			fmt.Println(r.State, "could not be read")
			return
		}
		fmt.Println(r.State, r.Detail)
	}
	read()
	file := filepath.Join(procfs, "sys/kernel/random/entropy_avail")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		panic(err)
	}
	for _, text := range []string{"256\n", "17\n", "many\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			panic(err)
		}
		read()
	}
	// Output:
	// UNKNOWN the kernel says nothing of entropy
	// NORMAL 256 bits of entropy
	// SICK 17 bits of entropy, want 128
	// UNKNOWN could not be read
}
