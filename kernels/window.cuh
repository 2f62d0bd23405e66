// What every kernel that takes a window shares: its kind, which is compiled in, and the products with its
// weights.
#pragma once
#include "common.cuh"

#ifndef WINDOW
#define WINDOW none
#endif

enum class Window { none, separable, full };
constexpr bool windowed = Window::WINDOW != Window::none;
constexpr bool separable = Window::WINDOW == Window::separable; // the weights of each axis after another

// A number on its way into a sum.
template <typename Number> inline __device__ Number weigh(Number number, Weight weight)
{
    if constexpr (windowed)
        return multiply(number, weight);
    else
        return number;
}

// An element that is stored, rounded once.
template <typename Element> inline __device__ Element weigh_element(Element element, Weight weight)
{
    if constexpr (windowed)
        return narrow(multiply(widen(element), weight));
    else
        return element;
}
