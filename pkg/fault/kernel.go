package fault

import "fmt"

// KernelDead says whether the kernel under a failed half is dead. The zero value is unknown: nothing proves either.
type KernelDead uint8

// The proven answers.
const (
	KernelIsDead  KernelDead = iota + 1 // the boot in which the fault began has ended
	KernelIsAlive                       // the kernel still ran after the half had failed: only the agent died
)

// String returns "yes", "no", or "" for unknown.
func (k KernelDead) String() string {
	switch k {
	case 0:
		return ""
	case KernelIsDead:
		return "yes"
	case KernelIsAlive:
		return "no"
	}
	return fmt.Sprintf("KernelDead(%d)", uint8(k))
}

// Valid reports whether k is unknown or one of the proven answers.
func (k KernelDead) Valid() bool { return k <= KernelIsAlive }
