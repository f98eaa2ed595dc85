package measure

import (
	"encoding/binary"
	"runtime"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Folding is the cost of a checksum during a copy, in bytes a second. All were measured in turns.
type Folding struct {
	Copy      float64 // alone
	TwoPasses float64 // the copy, then the sum over it
	Folded    float64 // the sum computed while copying, a block at a time (seed 002 §5.1)
}

// Bandwidth returns the throughput of work, in bytes a second, where work handles size bytes each time: the median of
// rounds, each at least so long. It uses the thread's own time: other threads on the same core do not count, though
// their effect on the caches does.
func Bandwidth(size int, round time.Duration, rounds int, work func()) float64 {
	return bandwidths(size, round, rounds, work)[0]
}

// bandwidths is Bandwidth of several works, by turns, so that other load on the machine affects them all.
func bandwidths(size int, round time.Duration, rounds int, works ...func()) []float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	found := make([][]float64, len(works))
	for range rounds {
		for i, work := range works {
			n := 0
			begun := threadTime()
			for threadTime()-begun < round {
				for range max(1, (1<<20)/size) { // to look at the clock is a system call
					work()
					n++
				}
			}
			found[i] = append(found[i], float64(n)*float64(size)/(threadTime()-begun).Seconds())
		}
	}
	out := make([]float64, len(works))
	for i := range found {
		out[i] = Quantile(found[i], 0.5)
	}
	return out
}

// ChecksumBandwidth returns the bandwidth of an algorithm over blocks of so many bytes (seed 002, Figure 4).
func ChecksumBandwidth(a lofamov1.Checksum, size int, round time.Duration, rounds int) float64 {
	b := pattern(size)
	return Bandwidth(size, round, rounds, func() { keep(servicenet.ChecksumOf(a, b)) })
}

// ReadBandwidth and CopyBandwidth are the bounds of any checksum, alone and on the way.
func ReadBandwidth(size int, round time.Duration, rounds int) float64 {
	b := pattern(size)
	return Bandwidth(size, round, rounds, func() { keep(read(b)) })
}

// CopyBandwidth counts the bytes copied, once.
func CopyBandwidth(size int, round time.Duration, rounds int) float64 {
	src, dst := pattern(size), make([]byte, size)
	return Bandwidth(size, round, rounds, func() { copy(dst, src) })
}

// Fold measures a checksum beside a copy of size bytes.
func Fold(a lofamov1.Checksum, size int, round time.Duration, rounds int) Folding {
	src, dst := pattern(size), slices.Repeat([]byte{1}, size)
	b := bandwidths(size, round, rounds,
		func() { copy(dst, src) },
		func() { copy(dst, src); keep(servicenet.ChecksumOf(a, dst)) },
		func() { d := servicenet.NewChecksummer(a); d.Copy(dst, src); keep(d.Sum64()) },
	)
	return Folding{Copy: b[0], TwoPasses: b[1], Folded: b[2]}
}

// keep uses a result, so that the compiler does not remove its computation.
func keep(v uint64) { runtime.KeepAlive(v) }

// read touches every word.
func read(b []byte) (x uint64) {
	for ; len(b) >= 64; b = b[64:] {
		q := b[:64:64]
		x |= binary.NativeEndian.Uint64(q) | binary.NativeEndian.Uint64(q[8:]) | binary.NativeEndian.Uint64(q[16:]) |
			binary.NativeEndian.Uint64(q[24:])
		x |= binary.NativeEndian.Uint64(q[32:]) | binary.NativeEndian.Uint64(q[40:]) | binary.NativeEndian.Uint64(q[48:]) |
			binary.NativeEndian.Uint64(q[56:])
	}
	return x
}

// pattern is bytes that are not all alike.
func pattern(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i * 131)
	}
	return b
}
