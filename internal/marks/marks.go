// Package marks has what zsync writes into znodes for the sake of tools alone, so
// that they can tell for certain what a znode is. Other libraries neither write nor
// read it; neither did an older zsync.
package marks

const (
	// Gate, followed by the owner, is the data of the znode of a closed Barrier.
	Gate = "zsync: closed by "
	// Map is the data of the znode whose children are the keys of a Map.
	Map = "zsync map"
)
