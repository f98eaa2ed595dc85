//go:build race

package inject

// slower is how many times longer the virtual worlds take here: so much fewer samples are taken.
const slower = 4
