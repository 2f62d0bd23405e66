// What every kernel takes behind its arrays: weights, which no sample reads.
struct Window {
    const float* weights;
};
