package zsync

// UnderRace reports whether the race detector is on, for tests from outside.
const UnderRace = underRace
