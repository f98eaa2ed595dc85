package main

import (
	"time"

	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// block is the block size of seed 002, Figure 4.
const block = 32 << 10

// checksums prints seed 002's Figure 4 for this machine, and the benefit of folding a checksum into a copy.
func checksums(o options) error {
	round, rounds, sizes := 20*time.Millisecond, 15, []int{1 << 10, block, 1 << 20, 64 << 20}
	if o.short {
		round, rounds, sizes = 2*time.Millisecond, 3, []int{block, 4 << 20}
	}
	o.out.f("\n### Checksums (seed 002, Figure 4)\n\nOn blocks of 32 kB that stay in the cache, MB/s, median of %d rounds of %s of "+
		"processor time; one thread. Plain read and copy are the bounds.\n\n", rounds, round)
	o.out.f("| | MB/s | on 64 bytes, ns |\n|---|---|---|\n")
	row := func(name string, bandwidth func(size int) float64) {
		o.out.f("| %s | %.0f | %.1f |\n", name, bandwidth(block)/1e6, 64e9/bandwidth(64))
	}
	row("plain read", func(size int) float64 { return measure.ReadBandwidth(size, round, rounds) })
	row("plain copy", func(size int) float64 { return measure.CopyBandwidth(size, round, rounds) })
	for _, a := range servicenet.Checksums()[1:] {
		row(servicenet.ChecksumName(a), func(size int) float64 { return measure.ChecksumBandwidth(a, size, round, rounds) })
	}
	o.out.f("\nWith a copy, MB/s: the copy alone, the checksum in a second pass over the copy, and folded into the copy (blocks of 16 kB); " +
		"in turns.\n\n")
	o.out.f("| object | checksum | copy alone | two passes | folded | folded against two passes |\n|---|---|---|---|---|---|\n")
	for _, size := range sizes {
		for _, a := range servicenet.Checksums()[1:] {
			f := measure.Fold(a, size, max(round, time.Duration(size)), rounds)
			o.out.f("| %s | %s | %.0f | %.0f | %.0f | %+.0f %% |\n", sizeName(size), servicenet.ChecksumName(a), f.Copy/1e6, f.TwoPasses/1e6,
				f.Folded/1e6, 100*(f.Folded/f.TwoPasses-1))
			o.progress.f("\rchecksums %s %-12s ", sizeName(size), servicenet.ChecksumName(a))
		}
	}
	o.progress.f("\n")
	return nil
}

func sizeName(n int) string {
	if n >= 1<<20 {
		return printed("%d MiB", n>>20)
	}
	return printed("%d kB", n>>10)
}
